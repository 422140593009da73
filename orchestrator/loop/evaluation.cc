#include "orchestrator/loop/evaluation.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

constexpr uint64_t kEvalStream = 0x6576616c;  // keeps evaluation's seeds apart from training's

EpisodeGroup MakeGroup(const EvalTask& task, int64_t row) {
  EpisodeGroup group;
  group.group_id = static_cast<uint64_t>(row);
  group.prompt = task.dataset->Row(row);
  for (int64_t i = 0; i < task.samples; ++i) {
    Episode episode;
    episode.episode_id = static_cast<uint64_t>(row * task.samples + i);
    episode.group_id = group.group_id;
    episode.index_in_group = static_cast<int32_t>(i);
    episode.seed =
        HashSeed({task.seed, kEvalStream, static_cast<uint64_t>(row), static_cast<uint64_t>(i)});
    group.episodes.push_back(std::move(episode));
  }
  return group;
}

struct Totals {
  int64_t scored = 0, truncated = 0, tokens = 0;
  double prompt_means = 0;
  std::vector<double> pass;
  std::string why;  // the first that failed did
};

void AddGroup(const EpisodeGroup& group, const EvalResult& result, Totals* totals, int64_t* failed,
              int64_t* prompts) {
  int64_t scored = 0, correct = 0;
  double sum = 0;
  for (const Episode& episode : group.episodes) {
    if (episode.status != EpisodeStatus::kScored) {
      ++*failed;
      if (totals->why.empty()) totals->why = episode.outcome.why;
      continue;
    }
    ++scored;
    sum += episode.outcome.score;
    correct += episode.outcome.score >= 1 ? 1 : 0;
    totals->truncated += episode.truncated() ? 1 : 0;
    for (const Sample& s : episode.samples) {
      totals->tokens += static_cast<int64_t>(s.num_policy_tokens());
    }
  }
  if (scored == 0) return;
  ++*prompts;
  totals->scored += scored;
  totals->prompt_means += sum / static_cast<double>(scored);
  for (size_t i = 0; i < result.pass_at_k.size(); ++i) {
    totals->pass[i] += PassAtK(scored, correct, std::min(scored, result.pass_at_k[i].first));
  }
}

}  // namespace

std::pair<double, double> WilsonInterval(double successes, int64_t n) {
  if (n == 0) return {0, 1};
  const double z = 1.959963984540054, count = static_cast<double>(n), p = successes / count;
  const double centre = (p + z * z / (2 * count)) / (1 + z * z / count);
  const double half = z / (1 + z * z / count) *
                      std::sqrt(std::max(0.0, p * (1 - p)) / count + z * z / (4 * count * count));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

double PassAtK(int64_t n, int64_t correct, int64_t k) {
  if (n - correct < k) return 1;
  double miss = 1;
  for (int64_t i = n - correct + 1; i <= n; ++i) {
    miss *= 1 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1 - miss;
}

absl::StatusOr<EvalResult> Evaluate(const EvalTask& task, const EvalRecord& record) {
  EvalResult result;
  for (int64_t k = 1; k <= task.samples; k *= 2) result.pass_at_k.push_back({k, 0});
  Totals totals;
  totals.pass.resize(result.pass_at_k.size());
  for (int64_t first = 0; first < task.dataset->size(); first += kPromptsAtOnce) {
    const int64_t end = std::min(task.dataset->size(), first + kPromptsAtOnce);
    std::vector<EpisodeGroup> groups;
    for (int64_t row = first; row < end; ++row) groups.push_back(MakeGroup(task, row));
    RETURN_IF_ERROR(task.runner->Run(&groups));
    task.grader->Grade(&groups);
    for (const EpisodeGroup& group : groups) {
      AddGroup(group, result, &totals, &result.failed, &result.prompts);
    }
    if (record) RETURN_IF_ERROR(record(std::move(groups)));
  }
  if (result.prompts == 0) {
    return Failed("evaluation {}: none of {} episodes could be scored{}{}", task.name,
                  result.failed, totals.why.empty() ? "" : "; the first: ", totals.why);
  }
  const double prompts = static_cast<double>(result.prompts);
  const double scored = static_cast<double>(totals.scored);
  result.accuracy = totals.prompt_means / prompts;
  std::tie(result.low, result.high) = WilsonInterval(totals.prompt_means, result.prompts);
  result.truncated_ratio = static_cast<double>(totals.truncated) / scored;
  result.response_len = static_cast<double>(totals.tokens) / scored;
  for (size_t i = 0; i < result.pass_at_k.size(); ++i) {
    result.pass_at_k[i].second = totals.pass[i] / prompts;
  }
  return result;
}

}  // namespace orrery

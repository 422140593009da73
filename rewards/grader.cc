#include "rewards/grader.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "orchestrator/base/check.h"

namespace orrery::rewards {
namespace {

int64_t NumPolicyTokens(const Episode& episode) {
  int64_t count = 0;
  for (const Sample& sample : episode.samples) {
    count += static_cast<int64_t>(sample.num_policy_tokens());
  }
  return count;
}

Rubric::Verdict GradeSafely(const Rubric& rubric, const RewardInput& input) {
  try {
    return rubric.Grade(input);
  } catch (const std::exception& error) {
    return {Outcome::Failed(std::string("grading raised: ") + error.what()), true};
  }
}

}  // namespace

void GradeEpisode(const Rubric& rubric, const Prompt& prompt, Episode* episode) {
  const FinishReason reason =
      episode->samples.empty() ? FinishReason::kStop : episode->samples.back().finish_reason;
  if (reason == FinishReason::kAborted) {
    episode->status = EpisodeStatus::kAborted;
    return;
  }
  Rubric::Verdict verdict;
  if (reason == FinishReason::kRejected) {
    verdict.outcome = Outcome::Failed("the engine did not accept the request");
  } else {
    verdict = GradeSafely(
        rubric, {prompt, episode->response_text, episode->truncated(), NumPolicyTokens(*episode)});
  }
  episode->outcome = std::move(verdict.outcome);
  episode->trained = verdict.trained;
  episode->status = episode->outcome.kind == Outcome::Kind::kScored ? EpisodeStatus::kScored
                                                                    : EpisodeStatus::kFailed;
}

RubricGrader::RubricGrader(std::unique_ptr<const Rubric> rubric, int num_threads)
    : rubric_(std::move(rubric)), num_threads_(num_threads) {
  CHECK(rubric_ != nullptr);
  CHECK_GE(num_threads_, 1);
}

void RubricGrader::Grade(std::vector<EpisodeGroup>* groups) {
  std::vector<std::pair<const Prompt*, Episode*>> work;
  for (EpisodeGroup& group : *groups) {
    for (Episode& episode : group.episodes) {
      if (episode.status == EpisodeStatus::kRunning) work.emplace_back(&group.prompt, &episode);
    }
  }
  std::atomic<size_t> next{0};
  const auto serve = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < work.size();) {
      GradeEpisode(*rubric_, *work[i].first, work[i].second);
    }
  };
  std::vector<std::thread> helpers;
  const size_t num_helpers = std::min<size_t>(num_threads_, work.size());
  for (size_t i = 1; i < num_helpers; ++i) helpers.emplace_back(serve);
  serve();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace orrery::rewards

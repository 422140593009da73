#include "rewards/advantage.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rewards {
namespace {

constexpr double kStdEpsilon = 1e-6;
constexpr double kVarianceEpsilon = 1e-8;
constexpr double kNoSpread = 1e-8;

double Mean(const std::vector<double>& scores) {
  double sum = 0;
  for (const double score : scores) sum += score;
  return scores.empty() ? 0 : sum / static_cast<double>(scores.size());
}

double UnbiasedStd(const std::vector<double>& scores, double mean) {
  if (scores.size() < 2) return 0;
  double sum = 0;
  for (const double score : scores) sum += (score - mean) * (score - mean);
  return std::sqrt(sum / static_cast<double>(scores.size() - 1));
}

// Equality is tested apart from the deviation: rounding can give equal scores a mean a little
// beside them.
bool HasSignal(const std::vector<double>& scores) {
  if (scores.size() < 2) return false;
  const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
  return *low != *high && UnbiasedStd(scores, Mean(scores)) > kNoSpread;
}

std::vector<double> Centered(const std::vector<double>& scores) {
  std::vector<double> centered(scores.size());
  if (!HasSignal(scores)) return centered;
  const double mean = Mean(scores);
  for (size_t i = 0; i < scores.size(); ++i) centered[i] = scores[i] - mean;
  return centered;
}

std::vector<double> GroupAdvantages(const AdvantageOptions& options,
                                    const std::vector<double>& scores) {
  switch (options.estimator) {
    case Estimator::kGrpo:
      return GrpoAdvantages(scores, options.divide_by_std);
    case Estimator::kDrGrpo:
      return DrGrpoAdvantages(scores);
    case Estimator::kRloo:
      return RlooAdvantages(scores);
    case Estimator::kReinforcePlusPlus:
      return scores;
    case Estimator::kReinforcePlusPlusBaseline:
      return Centered(scores);
  }
  return {};
}

struct Group {
  GroupSummary summary;
  std::vector<Episode*> valid;
};

std::vector<Group> GroupById(std::vector<EpisodeGroup>* groups) {
  std::vector<Group> found;
  std::unordered_map<uint64_t, size_t> index;
  for (EpisodeGroup& container : *groups) {
    for (Episode& episode : container.episodes) {
      CHECK_EQ(episode.group_id, container.group_id);
      const auto [it, is_new] = index.try_emplace(episode.group_id, found.size());
      if (is_new) found.emplace_back().summary.group_id = episode.group_id;
      Group& group = found[it->second];
      ++group.summary.num_members;
      episode.advantage = 0;
      if (episode.status == EpisodeStatus::kScored) group.valid.push_back(&episode);
    }
  }
  return found;
}

void AssignGroup(const AdvantageOptions& options, Group* group) {
  std::vector<double> scores;
  for (const Episode* episode : group->valid) scores.push_back(episode->outcome.score);
  const std::vector<double> advantages = GroupAdvantages(options, scores);
  for (size_t i = 0; i < scores.size(); ++i) group->valid[i]->advantage = advantages[i];
  group->summary.num_valid = static_cast<int>(scores.size());
  group->summary.mean = Mean(scores);
  group->summary.std = UnbiasedStd(scores, group->summary.mean);
  group->summary.zero_std = !HasSignal(scores);
}

int64_t TrainedTokens(const Episode& episode) {
  int64_t count = 0;
  for (const Sample& sample : episode.samples) {
    count += static_cast<int64_t>(sample.num_policy_tokens());
  }
  return episode.trained ? count : 0;
}

void WhitenEpisodes(const std::vector<Group>& groups, bool keep_zero) {
  std::vector<Episode*> episodes;
  std::vector<int64_t> weights;
  std::vector<double> values;
  for (const Group& group : groups) {
    for (Episode* episode : group.valid) {
      episodes.push_back(episode);
      weights.push_back(TrainedTokens(*episode));
      values.push_back(episode->advantage);
    }
  }
  WhitenByTokens(weights, &values);
  for (size_t i = 0; i < episodes.size(); ++i) episodes[i]->advantage = values[i];
  if (!keep_zero) return;
  for (const Group& group : groups) {
    if (!group.summary.zero_std) continue;
    for (Episode* episode : group.valid) episode->advantage = 0;
  }
}

}  // namespace

absl::StatusOr<Estimator> ParseEstimator(std::string_view algorithm) {
  if (algorithm == "grpo" || algorithm == "dapo" || algorithm == "gspo" || algorithm == "cispo") {
    return Estimator::kGrpo;
  }
  if (algorithm == "dr_grpo") return Estimator::kDrGrpo;
  if (algorithm == "rloo") return Estimator::kRloo;
  if (algorithm == "reinforce_plus_plus") return Estimator::kReinforcePlusPlus;
  if (algorithm == "reinforce_plus_plus_baseline") return Estimator::kReinforcePlusPlusBaseline;
  return InvalidInput(
      "algorithm '{}' has no advantages here; must be one of: grpo, dr_grpo, dapo, gspo, cispo, "
      "rloo, "
      "reinforce_plus_plus, reinforce_plus_plus_baseline",
      algorithm);
}

std::vector<double> GrpoAdvantages(const std::vector<double>& scores, bool divide_by_std) {
  std::vector<double> advantages = Centered(scores);
  if (!divide_by_std) return advantages;
  const double scale = UnbiasedStd(scores, Mean(scores)) + kStdEpsilon;
  for (double& advantage : advantages) advantage /= scale;
  return advantages;
}

std::vector<double> DrGrpoAdvantages(const std::vector<double>& scores) { return Centered(scores); }

std::vector<double> RlooAdvantages(const std::vector<double>& scores) {
  std::vector<double> advantages(scores.size());
  if (!HasSignal(scores)) return advantages;
  double sum = 0;
  for (const double score : scores) sum += score;
  const auto others = static_cast<double>(scores.size() - 1);
  for (size_t i = 0; i < scores.size(); ++i) advantages[i] = scores[i] - (sum - scores[i]) / others;
  return advantages;
}

void WhitenByTokens(const std::vector<int64_t>& weights, std::vector<double>* values) {
  CHECK_EQ(weights.size(), values->size());
  double total = 0, sum = 0;
  bool all_equal = true;
  double first = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    if (total == 0) first = (*values)[i];
    all_equal &= (*values)[i] == first;
    total += static_cast<double>(weights[i]);
    sum += static_cast<double>(weights[i]) * (*values)[i];
  }
  if (total < 2 || all_equal) {
    std::fill(values->begin(), values->end(), 0.0);
    return;
  }
  const double mean = sum / total;
  double squares = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    squares += static_cast<double>(weights[i]) * ((*values)[i] - mean) * ((*values)[i] - mean);
  }
  const double scale = 1 / std::sqrt(squares / (total - 1) + kVarianceEpsilon);
  for (double& value : *values) value = (value - mean) * scale;
}

std::vector<GroupSummary> AssignAdvantages(const AdvantageOptions& options,
                                           std::vector<EpisodeGroup>* groups) {
  std::vector<Group> found = GroupById(groups);
  std::vector<GroupSummary> summaries;
  for (Group& group : found) {
    AssignGroup(options, &group);
    summaries.push_back(group.summary);
  }
  if (options.leave_whitening) return summaries;
  const bool batch_baseline = options.estimator == Estimator::kReinforcePlusPlus;
  if (batch_baseline || options.estimator == Estimator::kReinforcePlusPlusBaseline ||
      options.whiten_batch) {
    WhitenEpisodes(found, /*keep_zero=*/!batch_baseline);
  }
  return summaries;
}

}  // namespace orrery::rewards

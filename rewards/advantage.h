// Scores to advantages. Groups are formed by Episode::group_id, never by position or count: a group
// may have lost members or be spread over several EpisodeGroups, and must not be mixed with
// another.
//
// Valid members are the scored ones; failed, filtered and aborted ones have no part in any mean and
// get advantage 0. A group with fewer than two valid members, or whose valid members all have the
// same score, gets exactly 0. Sums run in submission order in double: bitwise repeatable.
//
// With r the valid scores of a group, n their number, mean their mean, std their unbiased (n-1)
// standard deviation:
//   grpo                           (r - mean) / (std + 1e-6)     Shao et al. 2024; miles, verl
//   dr_grpo                        r - mean                      Liu et al. 2025
//   rloo                           r_i - mean of the others      Ahmadian et al. 2024
//   reinforce_plus_plus            r, whitened over the batch    Hu 2025
//   reinforce_plus_plus_baseline   r - mean, whitened over the batch
// A KL in the reward is a term a token and not made here, but by the trainer.
//
// Whitening: (x - m) / sqrt(v + 1e-8), m and v the mean and unbiased variance over all trained
// tokens of the batch, i.e. weighted by each episode's token count, as the masked whitening of verl
// and slime (advantages are constant over an episode). Where the batch has less than two trained
// tokens, or v is 0, whitened values are 0.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/types.h"

namespace orrery::rewards {

enum class Estimator { kGrpo, kDrGrpo, kRloo, kReinforcePlusPlus, kReinforcePlusPlusBaseline };

// By the algorithm's name; dapo, gspo and cispo take their advantages from grpo.
absl::StatusOr<Estimator> ParseEstimator(std::string_view algorithm);

struct AdvantageOptions {
  Estimator estimator = Estimator::kGrpo;
  bool divide_by_std = true;  // grpo only
  bool whiten_batch = false;  // additionally, after any estimator
  // Not here, whatever the estimator: the trainer whitens, after adding the KL of the reward.
  bool leave_whitening = false;
};

struct GroupSummary {
  uint64_t group_id = 0;
  int num_members = 0;
  int num_valid = 0;
  double mean = 0;  // of the valid scores, 0 without any
  double std = 0;   // unbiased; 0 with fewer than two
  // No signal: at most one valid score, or a spread below 1e-8 (the dynamic filters of miles and
  // DAPO).
  bool zero_std = true;
};

// The advantages of one group's valid scores, one function an estimator. All 0 where the group has
// no signal, except for ReinforcePlusPlus, whose baseline is the batch.
std::vector<double> GrpoAdvantages(const std::vector<double>& scores, bool divide_by_std);
std::vector<double> DrGrpoAdvantages(const std::vector<double>& scores);
std::vector<double> RlooAdvantages(const std::vector<double>& scores);

// In place; weights are token counts (0: not trained, still shifted and scaled).
void WhitenByTokens(const std::vector<int64_t>& weights, std::vector<double>* values);

// Sets advantage of every episode. Summaries in the order in which the groups' ids first appear.
std::vector<GroupSummary> AssignAdvantages(const AdvantageOptions& options,
                                           std::vector<EpisodeGroup>* groups);

}  // namespace orrery::rewards

// Several rewards as one: the weighted sum of their scores, and what becomes of truncated
// responses.
//
// A part that fails fails the whole (its weight notwithstanding): a sum without it would be another
// reward. Outcome::parts holds each part's score before weights, in the order of the rubric; where
// one reward is used twice the second is called "name#2", and so on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rewards/reward.h"

namespace orrery::rewards {

// What a response that ran into the token limit is worth (algorithm.truncated).
enum class TruncationPolicy {
  kGrade,  // graded like any other
  kZero,   // 0, whatever the rewards say; they are not asked
  kMask,   // graded and in its group's baseline, but not trained
};

absl::StatusOr<TruncationPolicy> ParseTruncationPolicy(std::string_view name);

class Rubric {
 public:
  struct Verdict {
    Outcome outcome;
    bool trained = true;  // false: masked
  };

  static absl::StatusOr<std::unique_ptr<Rubric>> Create(const std::vector<RewardSpec>& specs,
                                                        TruncationPolicy truncation);
  // For rewards made elsewhere (tests, and rewards of a task).
  struct Part {
    std::string name;
    double weight = 1;
    std::unique_ptr<Reward> reward;
  };
  Rubric(std::vector<Part> parts, TruncationPolicy truncation);

  // Thread-safe.
  Verdict Grade(const RewardInput& input) const;

 private:
  Outcome WeightedSum(const RewardInput& input) const;

  std::vector<Part> parts_;
  TruncationPolicy truncation_;
};

}  // namespace orrery::rewards

#include "rewards/rubric.h"

#include <cmath>
#include <map>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rewards {

absl::StatusOr<TruncationPolicy> ParseTruncationPolicy(std::string_view name) {
  if (name == "grade") return TruncationPolicy::kGrade;
  if (name == "zero") return TruncationPolicy::kZero;
  if (name == "mask") return TruncationPolicy::kMask;
  return InvalidInput("truncated is '{}', must be one of: grade, zero, mask", name);
}

Rubric::Rubric(std::vector<Part> parts, TruncationPolicy truncation)
    : parts_(std::move(parts)), truncation_(truncation) {
  std::map<std::string, int> uses;
  for (Part& part : parts_) {
    CHECK(part.reward != nullptr) << part.name;
    const int use = ++uses[part.name];
    if (use > 1) part.name = fmt::format("{}#{}", part.name, use);
  }
}

absl::StatusOr<std::unique_ptr<Rubric>> Rubric::Create(const std::vector<RewardSpec>& specs,
                                                       TruncationPolicy truncation) {
  if (specs.empty()) return InvalidInput("rewards is empty: at least one reward must be given");
  std::vector<Part> parts;
  for (const RewardSpec& spec : specs) {
    ASSIGN_OR_RETURN(std::unique_ptr<Reward> reward, MakeReward(spec));
    parts.push_back({spec.name, spec.weight, std::move(reward)});
  }
  return std::make_unique<Rubric>(std::move(parts), truncation);
}

Rubric::Verdict Rubric::Grade(const RewardInput& input) const {
  if (input.truncated && truncation_ == TruncationPolicy::kZero) {
    Outcome zero = Outcome::Scored(0, "truncated, which scores 0");
    for (const Part& part : parts_) zero.parts.emplace_back(part.name, 0.0);
    return {std::move(zero), true};
  }
  const bool masked = input.truncated && truncation_ == TruncationPolicy::kMask;
  return {WeightedSum(input), !masked};
}

Outcome Rubric::WeightedSum(const RewardInput& input) const {
  Outcome total = Outcome::Scored(0, "");
  for (const Part& part : parts_) {
    Outcome outcome = part.reward->Grade(input);
    if (outcome.kind == Outcome::Kind::kScored && !std::isfinite(outcome.score)) {
      outcome = Outcome::Failed(fmt::format("the score is {}", outcome.score));
    }
    const std::string named =
        parts_.size() == 1 ? outcome.why : fmt::format("{}: {}", part.name, outcome.why);
    if (outcome.kind == Outcome::Kind::kFailed) return Outcome::Failed(named);
    total.score += part.weight * outcome.score;
    total.parts.emplace_back(part.name, outcome.score);
    if (!total.why.empty()) total.why += "; ";
    total.why += named;
  }
  return std::isfinite(total.score) ? total : Outcome::Failed("the weighted sum is not finite");
}

}  // namespace orrery::rewards

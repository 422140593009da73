// "gsm8k_strict": verl's gsm8k reward, method "strict": the number behind the last "#### ", commas
// removed, must be the label letter for letter. No parameters.
#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/gsm8k.h"
#include "rewards/pattern.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

class Gsm8kStrict : public Reward {
 public:
  Outcome Grade(const RewardInput& input) const override {
    const std::string_view text = LastCharacters(input.response, kGsm8kCharacters);
    Pattern::Match match;
    const absl::StatusOr<bool> found = pattern_.SearchLast(text, &match);
    if (!found.ok()) return Outcome::Scored(0, StatusText(found.status()));
    if (!*found) return GradeGsm8k(std::nullopt, input.prompt);
    return GradeGsm8k(ReplaceEvery(match.groups[1], ",", ""), input.prompt);
  }

 private:
  const Pattern pattern_ = Pattern::Fixed("#### (-?[0-9.,]+)");
};

}  // namespace

std::unique_ptr<Reward> MakeGsm8kStrict(Parameters*) { return std::make_unique<Gsm8kStrict>(); }

}  // namespace orrery::rewards

// "math_slime": the reward "math" of slime (math_parity.h). No parameters.
#include "rewards/factories.h"
#include "rewards/math_parity.h"

namespace orrery::rewards {
namespace {

class MathSlime : public Reward {
 public:
  Outcome Grade(const RewardInput& input) const override {
    return GradeMathParity(input.response, input.prompt.answer, MathVariant::kSlime);
  }
};

}  // namespace

std::unique_ptr<Reward> MakeMathSlime(Parameters*) { return std::make_unique<MathSlime>(); }

}  // namespace orrery::rewards

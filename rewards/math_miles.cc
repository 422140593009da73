// "math_miles": the reward "math" of miles (math_parity.h). No parameters.
#include "rewards/factories.h"
#include "rewards/math_parity.h"

namespace orrery::rewards {
namespace {

class MathMiles : public Reward {
 public:
  Outcome Grade(const RewardInput& input) const override {
    return GradeMathParity(input.response, input.prompt.answer, MathVariant::kMiles);
  }
};

}  // namespace

std::unique_ptr<Reward> MakeMathMiles(Parameters*) { return std::make_unique<MathMiles>(); }

}  // namespace orrery::rewards

#include "rewards/factories.h"
namespace orrery::rewards {
std::unique_ptr<Reward> MakeProgram(Parameters*) { return nullptr; }
}  // namespace orrery::rewards

#include "rewards/gsm8k.h"

#include "orchestrator/base/status.h"
#include "rewards/factories.h"

namespace orrery::rewards {

Outcome GradeGsm8k(const std::optional<std::string>& answer, const Prompt& prompt) {
  if (!answer) return Outcome::Scored(0, "no answer found");
  const bool equal = *answer == prompt.answer;
  return Outcome::Scored(equal ? 1 : 0,
                         fmt::format("'{}' {} '{}'", Shorten(*answer), equal ? "equals" : "is not",
                                     Shorten(prompt.answer)));
}

}  // namespace orrery::rewards

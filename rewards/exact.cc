// "exact": 1 where the response (behind the last </think>, surrounding space removed) is the
// answer.
//
// Parameters: ignore_case (false; ASCII letters), last_line (false: only the last line with
// anything on it is compared).
#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

class Exact : public Reward {
 public:
  Exact(bool ignore_case, bool last_line) : ignore_case_(ignore_case), last_line_(last_line) {}

  Outcome Grade(const RewardInput& input) const override {
    std::string_view response = Strip(AfterThinking(input.response));
    if (last_line_) response = Strip(response.substr(response.rfind('\n') + 1));
    const std::string_view answer = Strip(input.prompt.answer);
    const bool equal = ignore_case_ ? Lowercase(response) == Lowercase(answer) : response == answer;
    return Outcome::Scored(
        equal ? 1 : 0, fmt::format("'{}' {} '{}'", Shorten(response), equal ? "equals" : "is not",
                                   Shorten(answer)));
  }

 private:
  bool ignore_case_;
  bool last_line_;
};

}  // namespace

std::unique_ptr<Reward> MakeExact(Parameters* parameters) {
  const bool ignore_case = parameters->Flag("ignore_case", false);
  return std::make_unique<Exact>(ignore_case, parameters->Flag("last_line", false));
}

}  // namespace orrery::rewards

// "math": our own grader of mathematical answers. Extraction as in answer_text.h, equality as in
// math_compare.h.
//
// Parameters: last_number (false): take the last number of a response that marks no answer.
//             ordered_lists (false): the order of "1, 2" matters.
#include <string>

#include "orchestrator/base/status.h"
#include "rewards/answer_text.h"
#include "rewards/factories.h"
#include "rewards/math_compare.h"

namespace orrery::rewards {
namespace {

class MathReward : public Reward {
 public:
  MathReward(ExtractOptions extract, MathOptions compare) : extract_(extract), compare_(compare) {}

  Outcome Grade(const RewardInput& input) const override {
    std::string truth = input.prompt.answer;
    if (const auto boxed = LastBoxed(truth)) truth = std::string(*boxed);
    if (truth.find_first_not_of(" \t\r\n$") == std::string::npos) {
      return Outcome::Failed(
          fmt::format("prompt '{}' has no answer to compare with", input.prompt.id));
    }
    const FoundAnswer found = FindAnswer(input.response, extract_);
    if (!found.found) return Outcome::Scored(0, found.how);
    const bool equal = EqualMath(truth, found.text, compare_);
    return Outcome::Scored(equal ? 1 : 0, Explain(found, truth, equal));
  }

 private:
  static std::string Explain(const FoundAnswer& found, const std::string& truth, bool equal) {
    return fmt::format("{}: '{}' {} '{}'", found.how, Shorten(found.text),
                       equal ? "equals" : "is not", Shorten(truth));
  }

  ExtractOptions extract_;
  MathOptions compare_;
};

}  // namespace

std::unique_ptr<Reward> MakeMath(Parameters* parameters) {
  ExtractOptions extract;
  extract.last_number = parameters->Flag("last_number", false);
  MathOptions compare;
  compare.ordered_lists = parameters->Flag("ordered_lists", false);
  return std::make_unique<MathReward>(extract, compare);
}

}  // namespace orrery::rewards

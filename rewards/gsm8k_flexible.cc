// "gsm8k_flexible": verl's gsm8k reward, method "flexible": the last number anywhere, commas kept
// (so 1,080 is not 1080), must be the label letter for letter. No parameters.
#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/gsm8k.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

bool IsNumberCharacter(char c) { return IsDigit(c) || c == '.' || c == ','; }

// The last run matching -?[0-9.,]+ that is more than a full stop; the first run where all are
// stops.
std::optional<std::string> LastRun(std::string_view text) {
  std::optional<std::string> found;
  size_t end = text.size();
  while (end > 0) {
    while (end > 0 && !IsNumberCharacter(text[end - 1])) --end;
    size_t begin = end;
    while (begin > 0 && IsNumberCharacter(text[begin - 1])) --begin;
    if (begin == end) break;
    const size_t sign = begin > 0 && text[begin - 1] == '-' ? 1 : 0;
    found = std::string(text.substr(begin - sign, end - begin + sign));
    if (*found != ".") break;
    end = begin;
  }
  return found;
}

class Gsm8kFlexible : public Reward {
 public:
  Outcome Grade(const RewardInput& input) const override {
    return GradeGsm8k(LastRun(LastCharacters(input.response, kGsm8kCharacters)), input.prompt);
  }
};

}  // namespace

std::unique_ptr<Reward> MakeGsm8kFlexible(Parameters*) { return std::make_unique<Gsm8kFlexible>(); }

}  // namespace orrery::rewards

// "dapo": the grader of the DAPO recipe as miles and slime have it: what follows the last "Answer:"
// in the last 300 characters, normalised, must be the label as an integer. +1 or -1. No parameters.
// Semantics: rollout/rm_hub/math_dapo_utils.py of miles 31f1ca961 (Minerva normalisation, Lewkowycz
// et al. 2022). A label that is no number raises there and is a failed outcome here.
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/pattern.h"
#include "rewards/python_number.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr size_t kCharacters = 300;

constexpr auto kSubstitutions = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"an ", ""},
    {"a ", ""},
    {".$", "$"},
    {"\\$", ""},
    {"\\ ", ""},
    {" ", ""},
    {"mbox", "text"},
    {",\\text{and}", ","},
    {"\\text{and}", ","},
    {"\\text{m}", "\\text{}"},
});

constexpr auto kRemoved = std::to_array<std::string_view>({
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
    "<|im_end|>",
    "<|endoftext|>",
});

bool AllDigits(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!IsDigit(c)) return false;
  }
  return true;
}

class Dapo : public Reward {
 public:
  Outcome Grade(const RewardInput& input) const override {
    const double label = PythonFloat(Normalize(input.prompt.answer)).value_or(NAN);
    if (!std::isfinite(label)) {
      return Outcome::Failed(
          fmt::format("prompt '{}': label '{}' is not a number, which dapo demands",
                      input.prompt.id, Shorten(input.prompt.answer)));
    }
    const std::string truth = PythonInt(label);
    const std::string answer = Normalize(LastAnswer(LastCharacters(input.response, kCharacters)));
    const bool equal = answer == truth;
    return Outcome::Scored(equal ? 1 : -1, fmt::format("'{}' {} '{}'", Shorten(answer),
                                                       equal ? "equals" : "is not", truth));
  }

 private:
  std::string LastAnswer(std::string_view text) const {
    Pattern::Match match;
    const absl::StatusOr<bool> found = answer_.SearchLast(text, &match);
    return found.ok() && *found ? std::string(match.groups[1]) : "[INVALID]";
  }

  std::string Normalize(std::string_view raw) const {
    std::string text = ValidUtf8(Split(raw, "=").back());
    for (const auto& [from, to] : kSubstitutions) text = ReplaceEvery(text, from, to);
    for (const std::string_view removed : kRemoved) text = ReplaceEvery(text, removed, "");
    for (const auto& [pattern, replacement] : rewrites_)
      text = pattern.ReplaceAll(text, replacement);
    text = ReplaceEvery(text, "$", "");
    const std::string digits = ReplaceEvery(text, ",", "");
    return std::string(Strip(AllDigits(digits) ? digits : text));
  }

  const Pattern answer_ = Pattern::Fixed("(?i)Answer\\s*:\\s*([^\\n]+)");
  const std::array<std::pair<Pattern, std::string_view>, 7> rewrites_ = {{
      {Pattern::Fixed("(.*?)(\\$)(.*?)(\\$)(.*)"), "$$$3$$"},
      {Pattern::Fixed("(\\\\text\\{)(.*?)(\\})"), "$2"},
      {Pattern::Fixed("(\\\\textbf\\{)(.*?)(\\})"), "$2"},
      {Pattern::Fixed("(\\\\overline\\{)(.*?)(\\})"), "$2"},
      {Pattern::Fixed("(\\\\boxed\\{)(.*)(\\})"), "$2"},
      {Pattern::Fixed("(frac)([^{])(.)"), "frac{$2}{$3}"},
      {Pattern::Fixed("(sqrt)([^{])"), "sqrt{$2}"},
  }};
};

}  // namespace

std::unique_ptr<Reward> MakeDapo(Parameters*) { return std::make_unique<Dapo>(); }

}  // namespace orrery::rewards

// "regex": 1 where a regular expression (PCRE2) is found in the response, or, with a group named by
// `group`, where what the last match's group holds equals the answer.
//
// Parameters: pattern; group (0: being found is enough); ignore_case (false); whole (false: the
// match must be the whole response, surrounding space removed); dot_matches_newline (true).
//
// Matching is limited (pattern.h). A response on which the pattern passes the limits is a failed
// outcome: the pattern said nothing about it.
#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/pattern.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

class Regex : public Reward {
 public:
  Regex(Pattern pattern, size_t group) : pattern_(std::move(pattern)), group_(group) {}

  Outcome Grade(const RewardInput& input) const override {
    const std::string_view response = Strip(input.response);
    Pattern::Match match;
    const absl::StatusOr<bool> found =
        group_ == 0 ? pattern_.Search(response, &match) : pattern_.SearchLast(response, &match);
    if (!found.ok()) {
      return Outcome::Failed(
          fmt::format("regex: {}; simplify the pattern", StatusText(found.status())));
    }
    if (!*found) return Outcome::Scored(0, "no match");
    if (group_ == 0)
      return Outcome::Scored(1, fmt::format("matched '{}'", Shorten(match.groups[0])));
    return Compare(match, Strip(input.prompt.answer));
  }

 private:
  Outcome Compare(const Pattern::Match& match, std::string_view answer) const {
    // Groups behind the last one that took part are not listed.
    const std::string_view text =
        group_ < match.groups.size() ? Strip(match.groups[group_]) : std::string_view();
    const bool equal = text == answer;
    return Outcome::Scored(
        equal ? 1 : 0,
        fmt::format("'{}' {} '{}'", Shorten(text), equal ? "equals" : "is not", Shorten(answer)));
  }

  Pattern pattern_;
  size_t group_;
};

}  // namespace

std::unique_ptr<Reward> MakeRegex(Parameters* parameters) {
  Pattern::Options options;
  const std::string text = parameters->Required("pattern");
  const auto group = static_cast<size_t>(parameters->Integer("group", 0, 0, 99));
  options.ignore_case = parameters->Flag("ignore_case", false);
  options.anchored_whole = parameters->Flag("whole", false);
  options.dot_matches_newline = parameters->Flag("dot_matches_newline", true);
  absl::StatusOr<Pattern> pattern = Pattern::Compile(text, options);
  if (pattern.ok() && group > pattern->num_groups()) {
    pattern = InvalidInput("group is {}, the pattern has {} groups", group, pattern->num_groups());
  }
  if (!pattern.ok()) {
    parameters->Fail(Annotate(pattern.status(), "reward 'regex'"));
    return nullptr;
  }
  return std::make_unique<Regex>(*std::move(pattern), group);
}

}  // namespace orrery::rewards

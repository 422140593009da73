// "format": 1 where the response has the required form, 0 otherwise.
//
// Parameters: tags ("think,answer": each <tag>...</tag> exactly once, in this order, none inside
// another), or pattern (PCRE2, the whole response must match); and nothing_outside (false: with
// tags, only white space may stand outside of them).
#include <vector>

#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/pattern.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

size_t Count(std::string_view text, std::string_view what) { return Split(text, what).size() - 1; }

class TagFormat : public Reward {
 public:
  TagFormat(std::vector<std::string> tags, bool nothing_outside)
      : tags_(std::move(tags)), nothing_outside_(nothing_outside) {}

  Outcome Grade(const RewardInput& input) const override {
    const std::string_view text = input.response;
    size_t at = 0;
    for (const std::string& tag : tags_) {
      const std::string open = "<" + tag + ">", close = "</" + tag + ">";
      if (Count(text, open) != 1 || Count(text, close) != 1) {
        return Outcome::Scored(0, fmt::format("<{}> must be opened and closed exactly once", tag));
      }
      const size_t begin = text.find(open), end = text.find(close);
      if (begin < at || end < begin)
        return Outcome::Scored(0, fmt::format("<{}> is out of place", tag));
      if (nothing_outside_ && !Strip(text.substr(at, begin - at)).empty()) {
        return Outcome::Scored(0, fmt::format("text before <{}>", tag));
      }
      at = end + close.size();
    }
    if (nothing_outside_ && !Strip(text.substr(at)).empty()) {
      return Outcome::Scored(0, fmt::format("text behind </{}>", tags_.back()));
    }
    return Outcome::Scored(1, "all tags in place");
  }

 private:
  std::vector<std::string> tags_;
  bool nothing_outside_;
};

class PatternFormat : public Reward {
 public:
  explicit PatternFormat(Pattern pattern) : pattern_(std::move(pattern)) {}

  Outcome Grade(const RewardInput& input) const override {
    Pattern::Match match;
    const absl::StatusOr<bool> found = pattern_.Search(Strip(input.response), &match);
    if (!found.ok()) {
      return Outcome::Failed(
          fmt::format("format: {}; simplify the pattern", StatusText(found.status())));
    }
    return Outcome::Scored(*found ? 1 : 0, *found ? "has the form" : "does not have the form");
  }

 private:
  Pattern pattern_;
};

bool IsTagName(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (!IsLetter(c) && !IsDigit(c) && c != '_' && c != '-') return false;
  }
  return true;
}

std::unique_ptr<Reward> MakeTags(Parameters* parameters, const std::string& list,
                                 bool nothing_outside) {
  std::vector<std::string> tags;
  for (const std::string_view part : Split(list, ",")) {
    tags.emplace_back(Strip(part));
    if (!IsTagName(tags.back())) {
      parameters->Fail(
          InvalidInput("reward 'format': tags is '{}', must be names like think,answer", list));
    }
  }
  return std::make_unique<TagFormat>(std::move(tags), nothing_outside);
}

}  // namespace

std::unique_ptr<Reward> MakeFormat(Parameters* parameters) {
  const std::string tags = parameters->String("tags", "");
  const std::string text = parameters->String("pattern", "");
  const bool nothing_outside = parameters->Flag("nothing_outside", false);
  if (tags.empty() == text.empty()) {
    parameters->Fail(
        InvalidInput("reward 'format': exactly one of tags and pattern must be given"));
    return nullptr;
  }
  if (!tags.empty()) return MakeTags(parameters, tags, nothing_outside);
  absl::StatusOr<Pattern> pattern =
      Pattern::Compile(text, {.dot_matches_newline = true, .anchored_whole = true});
  if (!pattern.ok()) {
    parameters->Fail(Annotate(pattern.status(), "reward 'format'"));
    return nullptr;
  }
  return std::make_unique<PatternFormat>(*std::move(pattern));
}

}  // namespace orrery::rewards

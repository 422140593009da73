// exact, regex, format, length, and the factory with its messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "rewards/command_line.h"
#include "rewards/parameters.h"
#include "rewards/pattern.h"
#include "rewards/text.h"
#include "tests/rewards/grade.h"

namespace orrery::rewards {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& name, std::map<std::string, std::string> parameters = {}) {
  const auto reward = MakeReward({.name = name, .parameters = std::move(parameters)});
  return reward.ok() ? "" : std::string(reward.status().message());
}

TEST(Factory, SuggestsTheNearestName) {
  EXPECT_THAT(ErrorOf("gsm8k_strikt"), HasSubstr("did you mean 'gsm8k_strict'?"));
  EXPECT_THAT(ErrorOf("zzzzzz"), HasSubstr("Known: dapo, exact, "));
  EXPECT_THAT(ErrorOf("zzzzzz"), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(ErrorOf(std::string(100000, 'x')), HasSubstr("Known: "));
}

TEST(Factory, RefusesUnknownAndWrongParameters) {
  EXPECT_THAT(ErrorOf("math", {{"last_numbr", "true"}}), HasSubstr("did you mean 'last_number'?"));
  EXPECT_THAT(ErrorOf("dapo", {{"x", "1"}}), HasSubstr("takes no parameters"));
  EXPECT_THAT(ErrorOf("math", {{"last_number", "yes"}}),
              HasSubstr("is 'yes', must be true or false"));
  EXPECT_THAT(ErrorOf("length", {{"max_length", "10"}, {"buffer", "11"}}),
              HasSubstr("'buffer' is '11', must be an integer from 1 to 10"));
  EXPECT_THAT(ErrorOf("length", {{"max_length", "1e3"}, {"buffer", "1"}}),
              HasSubstr("'max_length'"));
  EXPECT_THAT(ErrorOf("length"), HasSubstr("'max_length' must be given"));
  EXPECT_THAT(ErrorOf("length", {{"mode", "cubic"}, {"max_length", "9"}}),
              HasSubstr("dapo, linear"));
  EXPECT_THAT(ErrorOf("length", {{"max_length", "9"}, {"buffer", "9"}, {"penalty", "nan"}}),
              HasSubstr("'penalty'"));
  const auto infinite =
      MakeReward({.name = "math", .weight = std::numeric_limits<double>::infinity()});
  EXPECT_FALSE(infinite.ok());
}

TEST(Factory, EveryNameCanBeMade) {
  const std::map<std::string, std::map<std::string, std::string>> needed = {
      {"regex", {{"pattern", "a"}}},
      {"format", {{"tags", "think"}}},
      {"length", {{"max_length", "10"}, {"buffer", "5"}}},
      {"program", {{"command", "cat"}}}};
  for (const std::string_view name : RewardNames()) {
    const auto it = needed.find(std::string(name));
    EXPECT_NE(Make(std::string(name),
                   it == needed.end() ? std::map<std::string, std::string>() : it->second),
              nullptr);
  }
  const std::vector<std::string_view> names = RewardNames();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(Exact, ComparesWhatStandsBehindTheThinking) {
  const auto plain = Make("exact");
  EXPECT_EQ(GradeWith(*plain, "<think>no</think>\n yes \n", "yes").score, 1);
  EXPECT_EQ(GradeWith(*plain, "Yes", "yes").score, 0);
  EXPECT_EQ(GradeWith(*plain, "yes yes", "yes").score, 0);
  EXPECT_EQ(GradeWith(*Make("exact", {{"ignore_case", "true"}}), "YES", "yes").score, 1);
  const auto last = Make("exact", {{"last_line", "true"}});
  EXPECT_EQ(GradeWith(*last, "because\nyes\n\n", "yes").score, 1);
  EXPECT_EQ(GradeWith(*last, "yes\nno", "yes").score, 0);
}

TEST(Regex, FindsAndCompares) {
  EXPECT_EQ(GradeWith(*Make("regex", {{"pattern", "^a.b$"}}), "a\nb", "").score, 1);
  EXPECT_EQ(GradeWith(*Make("regex", {{"pattern", "b"}, {"whole", "true"}}), "abc", "").score, 0);
  EXPECT_EQ(GradeWith(*Make("regex", {{"pattern", "B"}, {"ignore_case", "true"}}), "abc", "").score,
            1);
  const auto group = Make("regex", {{"pattern", "= (\\d+)"}, {"group", "1"}});
  EXPECT_EQ(GradeWith(*group, "1+1 = 3, no: = 2", "2").score, 1);
  EXPECT_EQ(GradeWith(*group, "1+1 = 2, no: = 3", "2").score, 0);
  EXPECT_EQ(GradeWith(*group, "none", "2").score, 0);
  const auto unset = Make("regex", {{"pattern", "a|(b)"}, {"group", "1"}});
  EXPECT_EQ(GradeWith(*unset, "a", "b").score, 0);
}

TEST(Regex, RefusesBadPatterns) {
  EXPECT_THAT(ErrorOf("regex", {{"pattern", "(a"}}), HasSubstr("'(a'"));
  EXPECT_THAT(ErrorOf("regex", {{"pattern", "a"}, {"group", "1"}}), HasSubstr("group is 1"));
  EXPECT_THAT(ErrorOf("regex"), HasSubstr("'pattern' must be given"));
  EXPECT_THAT(ErrorOf("format", {{"pattern", "["}}), HasSubstr("regular expression"));
}

TEST(Regex, ARunawayPatternEndsAndIsNoScore) {
  const auto reward = Make("regex", {{"pattern", "(a+)+(a+)+(a+)+$"}});
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = GradeWith(*reward, std::string(5000, 'a') + "b", "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("limit"));
}

TEST(Regex, BrokenUtf8IsJustNotMatched) {
  const auto reward = Make("regex", {{"pattern", "ok"}});
  EXPECT_EQ(GradeWith(*reward, "\xff\xfeok", "").score, 1);
  EXPECT_EQ(GradeWith(*reward, "\xc3", "").score, 0);
}

TEST(Pattern, LastMatchAndReplacement) {
  Pattern::Match match;
  const Pattern digits = Pattern::Fixed("(\\d)x?");
  ASSERT_TRUE(*digits.SearchLast("1x2x3 ", &match));
  EXPECT_EQ(match.groups[1], "3");
  EXPECT_EQ(digits.ReplaceAll("1x2", "<$1>"), "<1><2>");
  EXPECT_EQ(Pattern::Fixed("a*").ReplaceAll("", "x"), "x");
  ASSERT_TRUE(*Pattern::Fixed("").SearchLast("abc", &match));
  EXPECT_EQ(match.begin, 3u);
  EXPECT_EQ(Pattern::Fixed("a").ReplaceAll(std::string(1000, 'a'), "0123456789").size(), 10000u);
}

TEST(Format, Tags) {
  const auto reward = Make("format", {{"tags", "think, answer"}});
  EXPECT_EQ(GradeWith(*reward, "<think>a</think> so <answer>b</answer>", "").score, 1);
  for (const char* bad : {"", "<think>a</think>", "<answer>b</answer><think>a</think>",
                          "<think>a<answer>b</answer></think>", "<think>a</think><answer>b",
                          "<think>a</think></answer><answer>b",
                          "<think>a</think><answer>b</answer><answer>c</answer>",
                          "<think>a</think><answer>b</answer></think>"}) {
    EXPECT_EQ(GradeWith(*reward, bad, "").score, 0) << bad;
  }
  const auto strict = Make("format", {{"tags", "think,answer"}, {"nothing_outside", "true"}});
  EXPECT_EQ(GradeWith(*strict, " <think>a</think>\n<answer>b</answer>\n", "").score, 1);
  EXPECT_EQ(GradeWith(*strict, "<think>a</think> so <answer>b</answer>", "").score, 0);
  EXPECT_EQ(GradeWith(*strict, "<think>a</think><answer>b</answer>.", "").score, 0);
}

TEST(Format, PatternMatchesTheWhole) {
  const auto reward = Make("format", {{"pattern", "<a>.*</a>"}});
  EXPECT_EQ(GradeWith(*reward, " <a>x\ny</a> ", "").score, 1);
  EXPECT_EQ(GradeWith(*reward, "<a>x</a>.", "").score, 0);
  EXPECT_THAT(ErrorOf("format"), HasSubstr("exactly one of tags and pattern"));
  EXPECT_THAT(ErrorOf("format", {{"tags", "a"}, {"pattern", "b"}}), HasSubstr("exactly one"));
  EXPECT_THAT(ErrorOf("format", {{"tags", "a,,b"}}), HasSubstr("must be names"));
}

TEST(Length, DapoSoftOverlongPunishment) {
  // DAPO's own figures: 20480 tokens at most, the last 4096 of them a ramp.
  const auto reward = Make("length", {{"max_length", "20480"}, {"buffer", "4096"}});
  EXPECT_EQ(GradeWith(*reward, "", "", 0).score, 0);
  EXPECT_EQ(GradeWith(*reward, "", "", 16384).score, 0);
  EXPECT_EQ(GradeWith(*reward, "", "", 16384 + 1024).score, -0.25);
  EXPECT_EQ(GradeWith(*reward, "", "", 20480).score, -1);
  EXPECT_EQ(GradeWith(*reward, "", "", 100000).score, -1);
  EXPECT_FALSE(std::signbit(GradeWith(*reward, "", "", 5).score));
}

TEST(Length, Linear) {
  const auto reward =
      Make("length", {{"mode", "linear"}, {"max_length", "200"}, {"penalty", "0.5"}});
  EXPECT_EQ(GradeWith(*reward, "", "", 100).score, -0.25);
  EXPECT_EQ(GradeWith(*reward, "", "", 1000).score, -0.5);
  EXPECT_THAT(ErrorOf("length", {{"mode", "linear"}, {"max_length", "200"}, {"buffer", "1"}}),
              HasSubstr("unknown parameter 'buffer'"));
}

TEST(Text, CountsCharactersFromTheEnd) {
  EXPECT_EQ(LastCharacters("añb", 2), "ñb");
  EXPECT_EQ(LastCharacters("añb", 9), "añb");
  EXPECT_EQ(LastCharacters("a\xff\xff", 1), "\xff");
  EXPECT_EQ(LastCharacters("\xe2\x82\xac€", 2), "€€");
  EXPECT_EQ(LastCharacters("abc", 0), "");
  EXPECT_EQ(CountCharacters("a\xff€"), 3u);
  EXPECT_EQ(ValidUtf8("a\xff"), "a\xef\xbf\xbd");
}

TEST(CommandLine, SplitsLikeAShellWithoutBeingOne) {
  const auto split = [](std::string_view text) { return SplitCommand(text).value(); };
  using Words = std::vector<std::string>;
  EXPECT_EQ(split(" a  b "), (Words{"a", "b"}));
  EXPECT_EQ(split("sh -c 'x \"y\" $z'"), (Words{"sh", "-c", "x \"y\" $z"}));
  EXPECT_EQ(split("a\\ b \"c\\\"d\" ''"), (Words{"a b", "c\"d", ""}));
  EXPECT_FALSE(SplitCommand("a 'b").ok());
  EXPECT_FALSE(SplitCommand("  ").ok());
  EXPECT_TRUE(FindExecutable("sh").ok());
  EXPECT_FALSE(FindExecutable("/etc/passwd").ok());
  EXPECT_FALSE(FindExecutable("no-such-program-anywhere").ok());
}

}  // namespace
}  // namespace orrery::rewards

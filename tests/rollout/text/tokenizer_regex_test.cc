#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rollout/text/regex.h"
#include "rollout/text/regex_syntax.h"

namespace orrery::rollout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Pieces(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> pieces;
  if (!regex.ok()) return pieces;
  RegexScratch scratch;
  for (const MatchRange& range : regex->Ranges(text, &scratch)) {
    pieces.push_back((range.is_match ? "+" : "-") +
                     std::string(text.substr(range.begin, range.end - range.begin)));
  }
  return pieces;
}

TEST(TokenizerRegex, GivesMatchesAndWhatIsBetween) {
  EXPECT_THAT(Pieces("b+", "abbac"), ElementsAre("-a", "+bb", "-ac"));
  EXPECT_THAT(Pieces("x", ""), ElementsAre("-"));
  EXPECT_THAT(Pieces(R"(\s+(?!\S)|\s+)", "a   b "), ElementsAre("-a", "+  ", "+ ", "-b", "+ "));
}

TEST(TokenizerRegex, AnEmptyMatchBehindAMatchDoesNotCount) {
  EXPECT_THAT(Pieces("b*", "abc"), ElementsAre("+", "-a", "+b", "-c", "+"));
  EXPECT_THAT(Pieces("(?<=x)(?=y)", "axyé"), ElementsAre("-ax", "+", "-yé"));
}

TEST(TokenizerRegex, ReadsOnigurumasDialect) {
  EXPECT_THAT(Pieces(R"(\s)", "a\u180eb"), ElementsAre("-a\u180eb"));  // no white space any more
  EXPECT_THAT(Pieces(R"([^\s])", "\u0085\u180e"), ElementsAre("-\u0085", "+\u180e"));
  EXPECT_THAT(Pieces(R"([\S]+)", "ab c"), ElementsAre("+ab", "- ", "+c"));
  EXPECT_THAT(Pieces(R"(\v)", "\n\v"), ElementsAre("-\n", "+\v"));
  EXPECT_THAT(Pieces(R"(a{,2})", "aaa"), ElementsAre("+aa", "+a"));
  EXPECT_THAT(Pieces(R"(^b$)", "a\nb\nc"), ElementsAre("-a\n", "+b", "-\nc"));
  EXPECT_THAT(Pieces(R"([\s-x])", "a-x"), ElementsAre("-a", "+-", "+x"));
  EXPECT_THAT(Pieces(R"([a-c\-.]+)", "b-.d"), ElementsAre("+b-.", "-d"));
  EXPECT_THAT(Pieces(R"(\x41\u00e9\x{1F600})", "Aé😀"), ElementsAre("+Aé😀"));
  EXPECT_THAT(Pieces(R"([一-龥]+)", "a你好b"), ElementsAre("-a", "+你好", "-b"));
  EXPECT_THAT(Pieces(R"((?i:'s))", "'S'ſ'x"), ElementsAre("+'S", "+'ſ", "-'x"));
  EXPECT_THAT(Pieces(R"(\p{^L}|\P{N})", "1a"), ElementsAre("+1", "+a"));
}

// Characters that PCRE2's Unicode 14 does not know: an ideograph of 15.1, a letter of 16.
TEST(TokenizerRegex, KnowsCharactersOfUnicode16) {
  EXPECT_THAT(Pieces(R"(\p{L}+)", "a\U0002ebf0\U00010d4a1"),
              ElementsAre("+a\U0002ebf0\U00010d4a", "-1"));
  EXPECT_THAT(Pieces(R"([^\p{L}]+)", "\U0002ebf0"), ElementsAre("-\U0002ebf0"));
}

TEST(TokenizerRegex, RefusesWhatTheTwoEnginesReadDifferently) {
  for (const char* pattern :
       {R"(\w+)",         R"(\bx)",    R"(\h)",     R"([a[bc]])",    R"([a&&b])",
        R"(a{2}+)",       R"(a{2}?)",  R"((?m:.))", R"(a(?i)b)",     R"((a)\1)",
        R"(\p{Greek})",   R"(\p{Cn})", R"(\pL)",    R"((*FAIL))",    R"([])",
        R"([[:alpha:]])", R"(a{x)",    R"(\K)",     R"(\x{110000})", R"(\xff)",
        R"((?<name>a))",  "\\"}) {
    EXPECT_FALSE(OnigurumaToPcre2(pattern).ok()) << pattern;
  }
}

TEST(TokenizerRegex, ErrorsSayWhatAndWhere) {
  EXPECT_THAT(OnigurumaToPcre2(R"(ab\w)").status().message(), HasSubstr(R"('\w' at byte 2)"));
  EXPECT_THAT(Regex::Compile("(a").status().message(), HasSubstr("parenthesis"));
  EXPECT_FALSE(Regex::Compile("[a").ok());
  EXPECT_FALSE(Regex::Compile("\xFF").ok());
}

TEST(TokenizerRegex, LiteralsAreNoPatterns) {
  const auto regex = Regex::Literal("a.b");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  EXPECT_EQ(regex->Ranges("axb a.b", &scratch).size(), 2u);
}

// A pattern that backtracks without end hits PCRE2's limit; the text is then one piece.
TEST(TokenizerRegex, RunawayPatternsEnd) {
  EXPECT_THAT(Pieces("(?:a+)+(?:a+)+(?:a+)+$x", std::string(60, 'a')), testing::SizeIs(1));
}

}  // namespace
}  // namespace orrery::rollout

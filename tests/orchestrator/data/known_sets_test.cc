#include "orchestrator/data/known_sets.h"

#include <gtest/gtest.h>

namespace orrery::data {
namespace {

TEST(Gsm8kAnswerTest, TakesWhatFollowsTheLastMark) {
  EXPECT_EQ(Gsm8kAnswer("x\n#### 72"), "72");
  EXPECT_EQ(Gsm8kAnswer("#### 1\n#### -1,234,567 \n"), "-1234567");
  EXPECT_EQ(Gsm8kAnswer("####5"), "5");
  EXPECT_EQ(Gsm8kAnswer("no mark 5"), std::nullopt);
  EXPECT_EQ(Gsm8kAnswer("#### "), std::nullopt);
  EXPECT_EQ(Gsm8kAnswer("#### ,"), std::nullopt);
  EXPECT_EQ(Gsm8kAnswer(""), std::nullopt);
}

TEST(WithoutAnnotationsTest, RemovesEachAndKeepsBrokenOnes) {
  EXPECT_EQ(WithoutAnnotations("48/2 = <<48/2=24>>24 and <<1=1>>1"), "48/2 = 24 and 1");
  EXPECT_EQ(WithoutAnnotations("a << b"), "a << b");
  EXPECT_EQ(WithoutAnnotations("a >> b"), "a >> b");
  EXPECT_EQ(WithoutAnnotations(""), "");
}

TEST(LastBoxedTest, MatchesBraces) {
  EXPECT_EQ(LastBoxed("\\boxed{1} \\boxed{2}"), "2");
  EXPECT_EQ(LastBoxed("$\\boxed{\\left\\{ 1, \\frac{a}{b} \\right\\}}$."),
            "\\left\\{ 1, \\frac{a}{b} \\right\\}");
  EXPECT_EQ(LastBoxed("\\boxed{ x }"), "x");
  EXPECT_EQ(LastBoxed("\\fbox{3} \\boxed{2} \\fbox{4}"), "4");
  EXPECT_EQ(LastBoxed("$\\boxed 5$ or"), "5");
  EXPECT_EQ(LastBoxed("\\boxed{1"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed "), std::nullopt);
  EXPECT_EQ(LastBoxed("boxed{1}"), std::nullopt);
  EXPECT_EQ(LastBoxed(""), std::nullopt);
}

}  // namespace
}  // namespace orrery::data

#include "rollout/episodes/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/base/status.h"

namespace orrery::rollout {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Answer(std::string_view turn) {
  const auto reply = Calculator().Reply(turn);
  if (!reply) return "<end>";
  EXPECT_EQ(reply->size(), 1u);
  EXPECT_EQ(reply->at(0).role, "tool");
  return reply->at(0).content;
}

TEST(SingleTurn, EndsWithTheFirstAnswer) {
  EXPECT_FALSE(SingleTurn().Reply("<calc>1+1</calc>").has_value());
  EXPECT_FALSE(SingleTurn().Reply("").has_value());
}

TEST(Calculator, AnswersACallAndEndsOtherwise) {
  EXPECT_EQ(Answer("<calc>8*6</calc>"), "48");
  EXPECT_EQ(Answer("First <calc>2*(3+4)</calc> then"), "14");
  EXPECT_EQ(Answer("#### 41"), "<end>");
  EXPECT_EQ(Answer(""), "<end>");
  EXPECT_EQ(Answer("<calc>8*6"), "<end>") << "the call was never closed";
  EXPECT_EQ(Answer("8*6</calc>"), "<end>");
  EXPECT_EQ(Answer("</calc><calc>"), "<end>");
}

TEST(Calculator, TakesTheLastCall) {
  EXPECT_EQ(Answer("<calc>1+1</calc><calc>2+2</calc>"), "4");
  EXPECT_EQ(Answer("<calc>1+1</calc> and <calc>2+"), "<end>") << "the last one is not closed";
}

TEST(Calculator, TellsTheModelWhatIsWrong) {
  for (const char* call : {"<calc></calc>", "<calc>7/2</calc>", "<calc>1/0</calc>",
                           "<calc>9999999999999*9999999999999</calc>", "<calc>rm -rf</calc>",
                           "<calc>((((</calc>", "<calc>\xff\xfe</calc>"}) {
    EXPECT_THAT(Answer(call), StartsWith("error: ")) << call;
  }
  EXPECT_THAT(Answer("<calc>" + std::string(100000, '(') + "</calc>"), StartsWith("error: "));
}

TEST(MakeEnvironment, KnowsItsNames) {
  EXPECT_TRUE(MakeEnvironment("single_turn").ok());
  EXPECT_TRUE(MakeEnvironment("calculator").ok());
  EXPECT_THAT(StatusText(MakeEnvironment("swe").status()),
              HasSubstr("rollout.environment: \"swe\" is unknown"));
}

}  // namespace
}  // namespace orrery::rollout

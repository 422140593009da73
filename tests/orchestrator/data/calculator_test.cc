#include "orchestrator/data/calculator.h"

#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"

namespace orrery::data {
namespace {

TEST(CalculatorTest, KnowsPrecedenceBracketsAndSigns) {
  EXPECT_EQ(CalculatorReply("8*6"), "48");
  EXPECT_EQ(CalculatorReply("2+3*4"), "14");
  EXPECT_EQ(CalculatorReply(" ( 2 + 3 ) * 4 "), "20");
  EXPECT_EQ(CalculatorReply("10-4-3"), "3");
  EXPECT_EQ(CalculatorReply("24/4/2"), "3");
  EXPECT_EQ(CalculatorReply("-3*-2"), "6");
  EXPECT_EQ(CalculatorReply("--5"), "5");
  EXPECT_EQ(CalculatorReply("-7/7"), "-1");
  EXPECT_EQ(CalculatorReply("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(CalculatorReply("-9223372036854775807-1"), "-9223372036854775808");
}

TEST(CalculatorTest, ErrorsAreText) {
  EXPECT_EQ(CalculatorReply("7/2"), "error: 7/2 is not a whole number");
  EXPECT_EQ(CalculatorReply("7/0"), "error: 7/0 has no value");
  EXPECT_EQ(CalculatorReply(""), "error: the expression ends too early");
  EXPECT_EQ(CalculatorReply("8*"), "error: the expression ends too early");
  EXPECT_EQ(CalculatorReply("8x6"), "error: unexpected 'x...'");
  EXPECT_EQ(CalculatorReply("(8"), "error: the expression ends too early");
  EXPECT_EQ(CalculatorReply("8)"), "error: unexpected ')'");
  EXPECT_EQ(CalculatorReply("8.5"), "error: unexpected '....'");
  EXPECT_EQ(CalculatorReply("9223372036854775808"), "error: a number is too large");
  EXPECT_EQ(CalculatorReply("9223372036854775807+1"), "error: 9223372036854775807+1 is too large");
  EXPECT_EQ(CalculatorReply("(-9223372036854775807-1)/-1"),
            "error: 0--9223372036854775808 is too large");
  EXPECT_EQ(CalculatorReply("-(-9223372036854775807-1)"),
            "error: 0--9223372036854775808 is too large");
  EXPECT_EQ(CalculatorReply(std::string_view("1\0002", 3)), "error: unexpected '\\x00...'");
  EXPECT_EQ(CalculatorReply(std::string(201, '1')),
            "error: the expression has more than 200 characters");
  EXPECT_EQ(CalculatorReply(std::string(200, '(')), "error: the expression ends too early");
}

TEST(CalculatorTest, NoTextCrashesIt) {
  constexpr std::string_view kBytes = "0123456789+-*/() \xff\x01";
  RandomStream random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(30); n > 0; --n) text += kBytes[random.Below(kBytes.size())];
    EXPECT_FALSE(CalculatorReply(text).empty());
  }
}

}  // namespace
}  // namespace orrery::data

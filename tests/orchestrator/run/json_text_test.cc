#include "orchestrator/run/json_text.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

template <typename T>
std::string Number(T value) {
  std::string out;
  AppendJsonNumber(&out, value);
  return out;
}

std::string Quoted(std::string_view text, bool for_html = false) {
  std::string out;
  AppendJsonString(&out, text, for_html);
  return out;
}

TEST(JsonText, FloatsOfEveryBitPatternComeBack) {
  RandomStream random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<uint32_t>(random.Next());
    const auto value = std::bit_cast<float>(bits);
    ASSERT_OK_AND_ASSIGN(const rapidjson::Document document,
                         ParseJsonLine(fmt::format("[{}]", Number(value))));
    ASSERT_OK_AND_ASSIGN(const float back, JsonFloat(document[0]));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(back));  // which NaN is not kept
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(back), bits) << Number(value);
    }
  }
}

TEST(JsonText, DoublesOfEveryBitPatternComeBack) {
  RandomStream random(2);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t bits = random.Next();
    const auto value = std::bit_cast<double>(bits);
    if (std::isnan(value)) continue;
    ASSERT_OK_AND_ASSIGN(const rapidjson::Document document,
                         ParseJsonLine(fmt::format("[{}]", Number(value))));
    ASSERT_OK_AND_ASSIGN(const double back, JsonDouble(document[0]));
    ASSERT_EQ(std::bit_cast<uint64_t>(back), bits) << Number(value);
  }
}

TEST(JsonText, NumbersAreShort) {
  EXPECT_EQ(Number(0.1), "0.1");
  EXPECT_EQ(Number(0.1f), "0.1");
  EXPECT_EQ(Number(-0.0), "-0");
  EXPECT_EQ(Number(1.0), "1");
  EXPECT_EQ(Number(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(Number(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(Number(-std::numeric_limits<float>::infinity()), "\"-inf\"");
}

TEST(JsonText, StringsAreEscaped) {
  EXPECT_EQ(Quoted("a\"b\\c\n\r\t\x01\x7f"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
  EXPECT_EQ(Quoted(std::string_view("a\0b", 3)), "\"a\\u0000b\"");
  EXPECT_EQ(Quoted("</script>"), "\"</script>\"");
  EXPECT_EQ(Quoted("</script>&\xe2\x80\xa8\xe2\x80\xa9\xef\xbf\xbe\xef\xbf\xbf", true),
            "\"\\u003c/script\\u003e\\u0026\\u2028\\u2029\\ufffe\\uffff\"");
  EXPECT_EQ(Quoted("caf\xc3\xa9 \xf0\x9f\x98\x80"), "\"caf\xc3\xa9 \xf0\x9f\x98\x80\"");
}

TEST(JsonText, BrokenUtf8IsShownAndKept) {
  for (const std::string bytes : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80",
                                  "ok\xe2\x82", "\x80\x80\x80x", "\xf0\x9f\x98"}) {
    std::string out;
    AppendJsonBytes(&out, bytes);
    ASSERT_OK_AND_ASSIGN(const rapidjson::Document document, ParseJsonLine(out));
    ASSERT_OK_AND_ASSIGN(const std::string back, JsonBytes(document));
    EXPECT_EQ(back, bytes);
    EXPECT_NE(out.find("\xef\xbf\xbd"), std::string::npos);
  }
}

TEST(JsonText, Base64OfEveryLengthComesBack) {
  RandomStream random(3);
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK_AND_ASSIGN(const std::string back, FromBase64(Base64(bytes)));
    EXPECT_EQ(back, bytes);
    bytes += static_cast<char>(random.Next());
  }
  EXPECT_EQ(Base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");  // RFC 4648's alphabet
  EXPECT_FALSE(FromBase64("abc").ok());
  EXPECT_FALSE(FromBase64("ab*d").ok());
}

TEST(JsonText, BadJsonIsAnError) {
  for (const char* text :
       {"", "{", "[1,]", "nul", "{\"a\":1}x", "\"\xff\"", "{\"a\" 1}", "\"\\ud800\"", "[1e999]"}) {
    EXPECT_FALSE(ParseJsonLine(text).ok()) << text;
  }
}

TEST(JsonText, DeepNestingIsNoCrash) {
  EXPECT_FALSE(ParseJsonLine(std::string(10'000'000, '[')).ok());
  EXPECT_TRUE(ParseJsonLine(std::string(1'000'000, '[') + std::string(1'000'000, ']')).ok());
}

TEST(JsonText, WrongKindsAreErrors) {
  ASSERT_OK_AND_ASSIGN(const rapidjson::Document document,
                       ParseJsonLine("[1.5,\"x\",null,{},-1,99999999999999999999]"));
  EXPECT_FALSE(JsonInt(document[0]).ok());
  EXPECT_FALSE(JsonDouble(document[1]).ok());
  EXPECT_FALSE(JsonDouble(document[2]).ok());
  EXPECT_FALSE(JsonBytes(document[2]).ok());
  EXPECT_FALSE(JsonBytes(document[3]).ok());
  EXPECT_FALSE(JsonUint(document[4]).ok());
  EXPECT_FALSE(JsonInt(document[5]).ok());
  EXPECT_FALSE(JsonMember(document, "a").ok());
  EXPECT_FALSE(JsonMember(document[3], "a").ok());
}

}  // namespace
}  // namespace orrery::run

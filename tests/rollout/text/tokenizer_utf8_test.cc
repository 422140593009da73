#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"
#include "rollout/text/byte_level.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr std::string_view kBad = "\xEF\xBF\xBD";

TEST(TokenizerUtf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = EncodeUtf8(c);
    const Utf8Char read = ReadUtf8(text);
    ASSERT_TRUE(read.valid);
    ASSERT_EQ(read.code_point, c);
    ASSERT_EQ(static_cast<size_t>(read.length), text.size());
    ASSERT_EQ(LastUtf8("x" + text), c);
  }
}

// What Python's bytes.decode("utf-8", errors="replace") gives.
TEST(TokenizerUtf8, MalformedPiecesBecomeReplacementCharacters) {
  const std::string bad(kBad);
  const std::pair<std::string, std::string> cases[] = {
      {"\xFF", bad},
      {"a\x80z", "a" + bad + "z"},
      {"\xC3", bad},
      {"\xC3(", bad + "("},
      {"\xE4\xBD", bad},
      {"\xE4\xBDx", bad + "x"},
      {"\xED\xA0\x80", bad + bad + bad},
      {"\xF0\x9F\x91", bad},
      {"\xF0\x9F\x91\xF0\x9F", bad + bad},
      {"\xF5\x80", bad + bad},
      {"\xE0\x80\x80", bad + bad + bad},
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},
      {"\xC0\xAF", bad + bad},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_FALSE(IsValidUtf8(bytes));
    EXPECT_EQ(ReplaceInvalidUtf8(bytes), text);
  }
}

// Random bytes, taken in random portions, give what they give at once.
TEST(TokenizerUtf8, TakingFinishedTextAgreesWithReplacingAtOnce) {
  RandomStream random(3);
  const std::string_view alphabet = "a\x80\xBF\xC3\xA9\xE4\xBD\xA0\xED\xF0\x9F\x91\xF4\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes, pending, taken;
    for (uint64_t n = random.Below(20); n > 0; --n) {
      std::string portion;
      for (uint64_t k = random.Below(4); k > 0; --k) {
        portion.push_back(alphabet[random.Below(alphabet.size())]);
      }
      bytes += portion;
      pending += portion;
      TakeFinishedUtf8(&pending, &taken);
      ASSERT_TRUE(IsValidUtf8(taken));
      ASSERT_LE(pending.size(), 3u);
    }
    ASSERT_EQ(taken + ReplaceInvalidUtf8(pending), ReplaceInvalidUtf8(bytes));
  }
}

TEST(TokenizerByteLevel, EveryByteHasACharacterOfItsOwn) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::string token = BytesToByteLevel(all);
  EXPECT_EQ(ByteLevelToBytes(token), all);
  EXPECT_EQ(ByteLevelChar(' '), "Ġ");
  EXPECT_EQ(ByteLevelChar('\n'), "Ċ");
  EXPECT_EQ(ByteLevelChar('a'), "a");
  EXPECT_EQ(ByteLevelToBytes("a b"), std::nullopt);  // the space is not in the alphabet
  EXPECT_EQ(ByteLevelToBytes("<｜x"), std::nullopt);
}

}  // namespace
}  // namespace orrery::rollout

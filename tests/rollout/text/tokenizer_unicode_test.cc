// Character classes and normal forms over every code point against digests of the oracle, so that
// the versions of Unicode that PCRE2 and utf8proc happen to know do not matter.

#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"
#include "rollout/text/regex.h"
#include "rollout/text/unicode_text.h"
#include "rollout/text/utf8.h"
#include "tests/rollout/text/tokenizer_fixtures.h"

namespace orrery::rollout {
namespace {

// U+0001 parted the characters when the golden file was made.
template <typename Visit>
void ForEachCodePoint(Visit visit) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c != 1 && (c < 0xD800 || c >= 0xE000)) visit(c);
  }
}

TEST(TokenizerUnicode, ClassesEqualTheOracles) {
  const rapidjson::Document golden = ReadJsonFile(FixturePath("unicode.golden.json"));
  RegexScratch scratch;
  for (const auto& entry : golden["classes"].GetArray()) {
    const std::string name = entry["class"].GetString();
    const auto regex = Regex::Compile(name == "s" ? "\\s" : "\\p{" + name + "}");
    ASSERT_TRUE(regex.ok()) << regex.status();
    std::string members;
    ForEachCodePoint([&](char32_t c) {
      members.push_back(regex->Ranges(EncodeUtf8(c), &scratch)[0].is_match ? 1 : 0);
    });
    EXPECT_EQ(std::count(members.begin(), members.end(), 1), entry["count"].GetInt64()) << name;
    EXPECT_EQ(Sha256(members), entry["sha256"].GetString()) << name;
  }
}

TEST(TokenizerUnicode, NormalFormsEqualTheOracles) {
  const rapidjson::Document golden = ReadJsonFile(FixturePath("unicode.golden.json"));
  for (const auto& entry : golden["forms"].GetArray()) {
    const std::string_view name = entry["form"].GetString();
    const NormalForm form{name.ends_with('C'), name.starts_with("NFK")};
    std::string all, normalized;
    ForEachCodePoint([&](char32_t c) {
      const std::string self = EncodeUtf8(c);
      for (const std::string& text :
           {self, "a\xCD\x85" + self, "a" + self + "\xCC\xB4", self + "\xCC\x81"}) {
        all += Normalize(form, text, &normalized) ? normalized : text;
        all += '\n';
      }
    });
    EXPECT_EQ(Sha256(all), entry["sha256"].GetString()) << name;
  }
}

TEST(TokenizerUnicode, WordCharactersAreThoseOfTheRustRegexCrate) {
  const std::u32string_view word = U"aZ_0é漢ß\u0301\u200d\u203f\u24b6\u16ee١\U00010d4a\U00011bf0";
  const std::u32string_view other = U" -.½²€👍\u00a0\u2028";
  for (const char32_t c : word) EXPECT_TRUE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
  for (const char32_t c : other) EXPECT_FALSE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
}

}  // namespace
}  // namespace orrery::rollout

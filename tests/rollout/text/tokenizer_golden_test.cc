// Ids and texts against golden values of Hugging Face's tokenizers (make_golden_tokenizer.py), on
// small fixtures that together hold every supported component, and on real tokenizers where
// $ORRERY_TOKENIZERS names a folder with some.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "rollout/text/tokenizer.h"
#include "rollout/text/utf8.h"
#include "tests/rollout/text/tokenizer_fixtures.h"

namespace orrery::rollout {
namespace {

namespace fs = std::filesystem;

// Every encoding and decoding of a golden file, and that streaming agrees with decoding at once.
void ExpectGolden(const Tokenizer& tokenizer, const std::string& golden_path) {
  const rapidjson::Document golden = ReadJsonFile(golden_path);
  size_t num_checked = 0;
  for (const auto& entry : golden["encodings"].GetArray()) {
    const std::string text = InputOf(entry);
    EXPECT_EQ(tokenizer.Encode(text), IdsOf(entry["ids"])) << "text: " << text;
    const auto& special = entry.HasMember("special") ? entry["special"] : entry["ids"];
    EXPECT_EQ(tokenizer.Encode(text, true), IdsOf(special)) << "text: " << text;
    ++num_checked;
  }
  for (const auto& entry : golden["decodings"].GetArray()) {
    const std::vector<int32_t> ids = IdsOf(entry["ids"]);
    EXPECT_EQ(tokenizer.Decode(ids), TextOf(entry["text"])) << testing::PrintToString(ids);
    EXPECT_EQ(tokenizer.Decode(ids, true), TextOf(entry["skipped"])) << testing::PrintToString(ids);
    IncrementalDecoder decoder(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string piece = decoder.Push(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      streamed += piece;
    }
    EXPECT_EQ(streamed + decoder.Finish(), TextOf(entry["skipped"]));
    ++num_checked;
  }
  EXPECT_GT(num_checked, 150u);
}

class TokenizerGolden : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerGolden, EqualsTheOracle) {
  const auto tokenizer = LoadFixture(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, FixturePath(GetParam() + ".golden.json"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerGolden, testing::ValuesIn(FixtureNames()),
                         [](const auto& param_info) { return param_info.param; });

TEST(TokenizerGolden, HasAllFixtures) {
  EXPECT_THAT(FixtureNames(), testing::IsSupersetOf({"behaviors", "deepseek", "gpt2", "llama2",
                                                     "llama3", "metaspace", "metaspace_always",
                                                     "no_decoder", "qwen", "qwen35"}));
}

TEST(TokenizerGolden, RealTokenizers) {
  const char* root = std::getenv("ORRERY_TOKENIZERS");
  if (root == nullptr) {
    GTEST_SKIP() << "ORRERY_TOKENIZERS names no folder of NAME/{tokenizer,golden}.json";
  }
  for (const auto& folder : fs::directory_iterator(root)) {
    const fs::path golden = folder.path() / "golden.json";
    if (!fs::exists(golden)) continue;
    SCOPED_TRACE(folder.path().string());
    const auto tokenizer = Tokenizer::Load(folder.path().string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ExpectGolden(**tokenizer, golden.string());
  }
}

}  // namespace
}  // namespace orrery::rollout

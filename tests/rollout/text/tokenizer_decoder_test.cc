// Streaming: what comes out is final, whole characters, and together what Decode gives.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "orchestrator/base/hash.h"
#include "rollout/text/json_cursor.h"
#include "rollout/text/token_decoder.h"
#include "rollout/text/utf8.h"
#include "tests/rollout/text/tokenizer_fixtures.h"

namespace orrery::rollout {
namespace {

using testing::ElementsAre;

std::vector<std::string> Stream(const std::string& decoder_json,
                                const std::vector<std::string>& tokens) {
  rapidjson::Document document;
  EXPECT_TRUE(ParseJson(decoder_json, &document).ok());
  const auto decoder = TokenDecoder::FromJson(JsonCursor(document, "decoder"));
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  std::vector<std::string> pieces;
  TokenDecoder::Stream stream = decoder->Open();
  for (const std::string& token : tokens) stream.Push(token, &pieces.emplace_back());
  stream.Finish(&pieces.emplace_back());
  return pieces;
}

constexpr const char* kLlama2 = R"({"type": "Sequence", "decoders": [
  {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
  {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

TEST(TokenizerDecoder, ByteFallbackWaitsForTheEndOfARun) {
  EXPECT_THAT(Stream(kLlama2, {"▁a", "<0xC3>", "<0xA9>", "b"}),
              ElementsAre("a", "", "", "\u00e9b", ""));
  // One stray byte spoils the whole run, which is why no part of it may come out before.
  EXPECT_THAT(Stream(kLlama2, {"<0xC3>", "<0xA9>", "<0xFF>", "b"}),
              ElementsAre("", "", "", "\ufffd\ufffd\ufffdb", ""));
  EXPECT_THAT(Stream(kLlama2, {"x", "<0xC3>"}), ElementsAre("x", "", "\ufffd"));
}

TEST(TokenizerDecoder, StripTakesOnlyFromTheEnds) {
  EXPECT_THAT(Stream(kLlama2, {"▁", "▁a", "▁"}), ElementsAre("", " a", " ", ""));
  const char* both = R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
    {"type": "Strip", "content": "_", "start": 2, "stop": 2}]})";
  EXPECT_THAT(Stream(both, {"_", "__a", "_", "_", "_b_", "_"}),
              ElementsAre("", "_a", "", "", "___b", "", ""));
  EXPECT_THAT(Stream(both, {"_"}), ElementsAre("", ""));
  EXPECT_THAT(Stream(R"({"type": "Strip", "content": "é", "start": 1, "stop": 1})", {"ééaé", "é"}),
              ElementsAre("éa", "", ""));
}

TEST(TokenizerDecoder, ReplaceBehindFuseSeesAcrossTokens) {
  const char* decoder = R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
    {"type": "Replace", "pattern": {"String": "abc"}, "content": "X"}]})";
  EXPECT_THAT(Stream(decoder, {"a", "b", "cab", "ab", "c"}),
              ElementsAre("", "", "X", "ab", "X", ""));
  EXPECT_THAT(Stream(decoder, {"ab"}), ElementsAre("", "ab"));
}

TEST(TokenizerDecoder, ByteLevelHoldsUnfinishedCharacters) {
  // 👍 is F0 9F 91 8D, in GPT-2's alphabet ð Ł ĳ į.
  EXPECT_THAT(Stream(R"({"type": "ByteLevel"})", {"aðŁ", "ĳ", "į!", "ð"}),
              ElementsAre("a", "", "👍!", "", "\ufffd"));
  // A character outside the alphabet: the token stands for itself, and cuts a character off.
  EXPECT_THAT(Stream(R"({"type": "ByteLevel"})", {"ð", "<｜x｜>"}),
              ElementsAre("", "\ufffd<｜x｜>", ""));
}

TEST(TokenizerDecoder, RandomIdsStreamAsTheyDecode) {
  RandomStream random(21);
  for (const std::string& fixture : FixtureNames()) {
    const auto tokenizer = LoadFixture(fixture);
    ASSERT_NE(tokenizer, nullptr);
    for (int round = 0; round < 200; ++round) {
      std::vector<int32_t> ids;
      for (uint64_t n = random.Below(30); n > 0; --n) {
        ids.push_back(static_cast<int32_t>(random.Below(tokenizer->vocab_size() + 3)) - 1);
      }
      const bool skip_special = random.Below(2) == 1;
      IncrementalDecoder decoder(*tokenizer, skip_special);
      std::string streamed;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = decoder.Push(ids[i]);
        ASSERT_TRUE(IsValidUtf8(piece));
        streamed += piece;
        // Final: whatever follows, the text begins with what has come so far.
        ASSERT_TRUE(
            tokenizer->Decode(std::span(ids).first(i + 1), skip_special).starts_with(streamed));
      }
      streamed += decoder.Finish();
      ASSERT_EQ(streamed, tokenizer->Decode(ids, skip_special)) << fixture;
    }
  }
}

TEST(Tokenizer, TakesIdsOutOfRange) {
  const auto tokenizer = LoadFixture("qwen");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> ids = {-1, INT32_MIN, INT32_MAX, tokenizer->vocab_size()};
  EXPECT_EQ(tokenizer->Decode(ids), "");
  for (const int32_t id : ids) {
    EXPECT_FALSE(tokenizer->HasToken(id));
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->TokenText(id), "");
  }
}

TEST(Tokenizer, FindsTokensByText) {
  const auto tokenizer = LoadFixture("qwen");
  ASSERT_NE(tokenizer, nullptr);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    ASSERT_TRUE(tokenizer->HasToken(id));
    ASSERT_EQ(tokenizer->TokenId(tokenizer->TokenText(id)), id);
  }
  EXPECT_EQ(tokenizer->TokenId("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(*tokenizer->TokenId("<|im_end|>")));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->TokenId("<think>")));
  EXPECT_EQ(tokenizer->fingerprint(), Sha256(ReadText(FixturePath("qwen.json"))));
}

TEST(Tokenizer, ReadsSpecialTokensOfTheConfiguration) {
  TokenizerFiles files;
  files.tokenizer_json = ReadText(FixturePath("deepseek.json"));
  files.tokenizer_config_json = R"({"bos_token": {"content": "<｜begin▁of▁sentence｜>"},
    "eos_token": "<｜end▁of▁sentence｜>", "pad_token": null, "add_bos_token": true})";
  files.special_tokens_map_json = R"({"pad_token": "<｜end▁of▁sentence｜>"})";
  const auto loaded = Tokenizer::FromFiles(files);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.TokenText(*tokenizer.bos_id()), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.pad_id());
  EXPECT_THAT(tokenizer.prefix_ids(), ElementsAre(*tokenizer.bos_id()));
  EXPECT_THAT(tokenizer.Encode("", true), ElementsAre(*tokenizer.bos_id()));
  EXPECT_EQ(tokenizer.Encode("a", true).size(), tokenizer.Encode("a").size() + 1);
}

// add_bos_token false takes the template's BOS away; true does not double it.
TEST(Tokenizer, AddBosTokenOverrulesTheTemplate) {
  const auto with = [](const std::string& value) {
    const std::string json = ReadText(FixturePath("llama3.json"));
    const auto loaded = Tokenizer::FromFiles(
        {json, R"({"bos_token": "<|begin_of_text|>", "add_bos_token": )" + value + "}", ""});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return (*loaded)->prefix_ids().size();
  };
  EXPECT_EQ(with("null"), 1u);
  EXPECT_EQ(with("true"), 1u);
  EXPECT_EQ(with("false"), 0u);
}

TEST(Tokenizer, ManyThreadsGiveTheSameIds) {
  const auto tokenizer = LoadFixture("llama3");
  ASSERT_NE(tokenizer, nullptr);
  const rapidjson::Document golden = ReadJsonFile(FixturePath("llama3.golden.json"));
  std::vector<std::pair<std::string, std::vector<int32_t>>> cases;
  for (const auto& entry : golden["encodings"].GetArray()) {
    cases.emplace_back(InputOf(entry), IdsOf(entry["ids"]));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < cases.size(); ++i) {
          const auto& [text, ids] = cases[(i + 31 * t) % cases.size()];
          wrong[t] += tokenizer->Encode(text) != ids;
          tokenizer->Decode(ids);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

// Long words and long runs take time in proportion to their length, or nearly.
TEST(Tokenizer, LongInputsEnd) {
  for (const char* fixture : {"qwen", "llama2", "deepseek", "gpt2"}) {
    const auto tokenizer = LoadFixture(fixture);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* unit : {"a", " ", "\n", " \n", "the", "9", "!", "é", "<", "\xFF", "<|im_"}) {
      std::string text;
      while (text.size() < 300000) text += unit;
      EXPECT_FALSE(tokenizer->Encode(text).empty());
    }
  }
}

}  // namespace
}  // namespace orrery::rollout

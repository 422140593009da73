// Tokenizers that this project writes: from llama2.c vocabularies, and trained. The files that the
// tests make are compared with committed ones, whose ids are golden values of the oracle. After a
// change that is meant, run with ORRERY_WRITE_FIXTURES=1 and make the golden values anew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "orchestrator/base/hash.h"
#include "rollout/text/bpe_trainer.h"
#include "rollout/text/llama2c_tokenizer.h"
#include "rollout/text/utf8.h"
#include "tests/rollout/text/tokenizer_fixtures.h"

namespace orrery::rollout {
namespace {

using testing::HasSubstr;

void ExpectCommitted(const std::string& name, const std::string& json) {
  const std::string path = FixturePath(name);
  if (std::getenv("ORRERY_WRITE_FIXTURES") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(path, json).ok());
  }
  EXPECT_TRUE(json == ReadText(path)) << path << " differs from what the code writes now";
}

struct ScoredToken {
  std::string text;
  float score;
};

std::string Llama2cBytes(const std::vector<ScoredToken>& tokens) {
  std::string bytes;
  const auto word = [&](uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  };
  word(7);
  for (const ScoredToken& token : tokens) {
    word(std::bit_cast<uint32_t>(token.score));
    word(static_cast<uint32_t>(token.text.size()));
    bytes += token.text;
  }
  return bytes;
}

std::vector<ScoredToken> ControlAndByteTokens() {
  std::vector<ScoredToken> tokens = {{"<unk>", 0}, {"\n<s>\n", 0}, {"\n</s>\n", 0}};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    tokens.push_back({text, 0});
  }
  return tokens;
}

// llama2.c's algorithm as its own description has it (see llama2c_tokenizer.h), step by step.
std::vector<int32_t> EncodeAsLlama2c(const std::vector<ScoredToken>& tokens,
                                     const std::string& text) {
  std::map<std::string, int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i].text, i);
  std::vector<int32_t> out;
  if (!text.empty()) out.push_back(ids.at(" "));
  for (size_t i = 0; i < text.size();) {
    const std::string character = text.substr(i, ReadUtf8(std::string_view(text).substr(i)).length);
    i += character.size();
    if (ids.contains(character)) {
      out.push_back(ids.at(character));
    } else {
      for (const char byte : character) out.push_back(static_cast<uint8_t>(byte) + 3);
    }
  }
  while (true) {
    float best_score = -1e10f;
    size_t best = out.size();
    for (size_t i = 0; i + 1 < out.size(); ++i) {
      const auto joined = ids.find(tokens[out[i]].text + tokens[out[i + 1]].text);
      if (joined == ids.end() || tokens[joined->second].score <= best_score) continue;
      best_score = tokens[joined->second].score;
      best = i;
    }
    if (best == out.size()) return out;
    out[best] = ids.at(tokens[out[best]].text + tokens[out[best + 1]].text);
    out.erase(out.begin() + best + 1);
  }
}

void ExpectSameAsLlama2c(const std::vector<ScoredToken>& tokens, const Tokenizer& tokenizer,
                         const std::string& alphabet, int rounds) {
  RandomStream random(4);
  for (int round = 0; round < rounds; ++round) {
    std::string text;
    for (uint64_t n = random.Below(60); n > 0; --n) {
      text += random.Below(12) == 0 ? "é" : std::string(1, alphabet[random.Below(alphabet.size())]);
    }
    ASSERT_EQ(tokenizer.Encode(text), EncodeAsLlama2c(tokens, text)) << text;
    ASSERT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
  }
}

// A SentencePiece vocabulary in small: every token is the join of two earlier ones.
std::vector<ScoredToken> RandomLlama2cTokens(uint64_t seed) {
  RandomStream random(seed);
  std::vector<ScoredToken> tokens = ControlAndByteTokens();
  std::vector<std::string> texts = {" ", "a", "b", "c"};
  while (texts.size() < 60) {
    const std::string joined =
        texts[random.Below(texts.size())] + texts[random.Below(texts.size())];
    if (joined.size() < 8 && !std::ranges::count(texts, joined)) texts.push_back(joined);
  }
  for (size_t i = 4; i < texts.size(); ++i) tokens.push_back({texts[i], 3.0f - float(i)});
  for (size_t i = 0; i < 4; ++i) tokens.push_back({texts[i], -100.0f - float(i)});
  return tokens;
}

TEST(TokenizerLlama2c, EncodesAsLlama2c) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<ScoredToken> tokens = RandomLlama2cTokens(seed);
    const auto json = Llama2cTokenizerJson(Llama2cBytes(tokens));
    ASSERT_TRUE(json.ok()) << json.status();
    const auto tokenizer = Tokenizer::FromFiles({*json, "", ""});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->vocab_size(), static_cast<int32_t>(tokens.size()));
    ExpectSameAsLlama2c(tokens, **tokenizer, " abc", 150);
  }
}

// The committed file's ids are checked against the oracle by tokenizer_golden_test.
TEST(TokenizerLlama2c, WritesTheCommittedFile) {
  const auto json = Llama2cTokenizerJson(Llama2cBytes(RandomLlama2cTokens(0)));
  ASSERT_TRUE(json.ok()) << json.status();
  ExpectCommitted("made_llama2c.json", *json);
}

TEST(TokenizerLlama2c, ConvertsTheRealVocabularyOfStories260K) {
  const auto bytes = ReadFile(RealDataPath("stories260k/tok512.bin"));
  if (!bytes.ok()) GTEST_SKIP() << "stories260k/tok512.bin: " << bytes.status();
  std::vector<ScoredToken> tokens;
  for (size_t at = 4; at < bytes->size();) {
    uint32_t score, length;
    std::memcpy(&score, bytes->data() + at, 4);
    std::memcpy(&length, bytes->data() + at + 4, 4);
    tokens.push_back({bytes->substr(at + 8, length), std::bit_cast<float>(score)});
    at += 8 + length;
  }
  const auto json = Llama2cTokenizerJson(*bytes);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto tokenizer = Tokenizer::FromFiles({*json, "", ""});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 512);
  EXPECT_EQ((*tokenizer)->Encode("Once upon a time", true),
            (std::vector<int32_t>{1, 403, 407, 261, 378}));
  ExpectSameAsLlama2c(tokens, **tokenizer, "  eeaotthhndsrlim.,TOL\n", 300);
}

TEST(TokenizerLlama2c, RefusesDamagedFiles) {
  const std::string bytes = Llama2cBytes(RandomLlama2cTokens(0));
  size_t refused = 0;
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto json = Llama2cTokenizerJson(std::string_view(bytes).substr(0, length));
    // Between two tokens a cut leaves a smaller vocabulary, which only the model's size belies.
    refused += !json.ok();
  }
  EXPECT_EQ(refused, bytes.size() - (RandomLlama2cTokens(0).size() - 259));
  EXPECT_THAT(Llama2cTokenizerJson("").status().message(), HasSubstr("0 bytes"));
  std::vector<ScoredToken> tokens = RandomLlama2cTokens(0);
  tokens[10].text = "oops";
  EXPECT_THAT(Llama2cTokenizerJson(Llama2cBytes(tokens)).status().message(),
              HasSubstr("token 10 is 'oops', expected <0x07>"));
  tokens = RandomLlama2cTokens(0);
  tokens[300].text = tokens[280].text;
  EXPECT_THAT(Llama2cTokenizerJson(Llama2cBytes(tokens)).status().message(), HasSubstr("are both"));
  tokens = RandomLlama2cTokens(0);
  tokens[300].score = NAN;
  EXPECT_THAT(Llama2cTokenizerJson(Llama2cBytes(tokens)).status().message(), HasSubstr("score"));
  tokens[300] = {"\xFF", 0};
  EXPECT_FALSE(Llama2cTokenizerJson(Llama2cBytes(tokens)).ok());
}

std::vector<std::string> TrainingTexts() {
  std::vector<std::string> texts;
  RandomStream random(1);
  const char* names[] = {"Mia", "Tom", "Léa", "Ben"};
  const char* items[] = {"apples", "pens", "cups", "shells"};
  for (int i = 0; i < 300; ++i) {
    const uint64_t a = random.Below(90), b = random.Below(9);
    const std::string name = names[random.Below(4)], item = items[random.Below(4)];
    texts.push_back(name + " has " + std::to_string(a) + " " + item + ". " + name + " buys " +
                    std::to_string(b) + " more. How many " + item + " does " + name +
                    " have now?\n" + std::to_string(a) + "+" + std::to_string(b) + "=" +
                    std::to_string(a + b) + ". #### " + std::to_string(a + b) + "<|im_end|>");
  }
  return texts;
}

const std::vector<std::string> kSpecial = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

TEST(TokenizerTrainer, WritesTheCommittedFile) {
  const auto json = TrainByteLevelBpe(TrainingTexts(), 318, kSpecial);
  ASSERT_TRUE(json.ok()) << json.status();
  ExpectCommitted("made_trained.json", *json);
}

TEST(TokenizerTrainer, WordsBecomeTokensAndDigitsStaySingle) {
  const auto json = TrainByteLevelBpe(TrainingTexts(), 318, kSpecial);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto loaded = Tokenizer::FromFiles({*json, R"({"eos_token": "<|im_end|>"})", ""});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.vocab_size(), 318);
  EXPECT_EQ(tokenizer.eos_id(), 317);
  EXPECT_TRUE(tokenizer.TokenId("Ġapples").has_value());
  EXPECT_EQ(tokenizer.Encode("1234").size(), 4u);
  EXPECT_EQ(tokenizer.TokenId("<|im"), std::nullopt);  // special tokens taught nothing
  for (const std::string& text : TrainingTexts()) {
    ASSERT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
  }
}

// The pair counts of "ab ab ab" are equal for (a,b) and ( ,a): the smaller ids win, so " a" comes
// first (0x20 before 0x61).
TEST(TokenizerTrainer, TiesGoToTheSmallestIds) {
  const auto json = TrainByteLevelBpe(std::vector<std::string>{" ab ab ab"}, 257, {});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, HasSubstr("[\"Ġ\", \"a\"]"));
}

TEST(TokenizerTrainer, StopsWhereNothingRepeats) {
  const auto json = TrainByteLevelBpe(std::vector<std::string>{"abcdefg"}, 1000, {});
  ASSERT_TRUE(json.ok()) << json.status();
  const auto tokenizer = Tokenizer::FromFiles({*json, "", ""});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 256);
}

TEST(TokenizerTrainer, RefusesWhatCannotBe) {
  const std::vector<std::string> none;
  EXPECT_THAT(TrainByteLevelBpe(none, 257, kSpecial).status().message(), HasSubstr("need 259"));
  EXPECT_FALSE(TrainByteLevelBpe(none, 400, std::vector<std::string>{"x", "x"}).ok());
  EXPECT_FALSE(TrainByteLevelBpe(none, 400, std::vector<std::string>{""}).ok());
  EXPECT_THAT(TrainByteLevelBpe(none, 400, std::vector<std::string>{"a"}).status().message(),
              HasSubstr("ordinary token"));
}

}  // namespace
}  // namespace orrery::rollout

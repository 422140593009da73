// Bad tokenizer files: one clear error that names the key and the value, never a crash.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "orchestrator/base/hash.h"
#include "rapidjson/pointer.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"
#include "tests/rollout/text/tokenizer_fixtures.h"

namespace orrery::rollout {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const std::string& tokenizer_json, const std::string& config_json = "") {
  const auto tokenizer = Tokenizer::FromFiles({tokenizer_json, config_json, ""});
  if (tokenizer.ok()) return "no error";
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

// The error of a fixture with one value replaced; "" as the value removes the key.
std::string ErrorWith(const std::string& fixture, const char* pointer, const std::string& value) {
  rapidjson::Document document = ReadJsonFile(FixturePath(fixture + ".json"));
  const rapidjson::Pointer where(pointer);
  if (value.empty()) {
    EXPECT_TRUE(where.Erase(document));
  } else {
    rapidjson::Document replacement(&document.GetAllocator());
    replacement.Parse(value);
    EXPECT_FALSE(replacement.HasParseError()) << value;
    where.Set(document, static_cast<rapidjson::Value&>(replacement));
  }
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  document.Accept(writer);
  return ErrorOf(buffer.GetString());
}

TEST(TokenizerErrors, NamesKeyAndValue) {
  const auto expect = [](const char* pointer, const char* value, auto matcher,
                         const char* fixture = "qwen") {
    EXPECT_THAT(ErrorWith(fixture, pointer, value), matcher) << pointer << " = " << value;
  };
  expect("/model/merges", "", AllOf(HasSubstr("model.merges"), HasSubstr("null")));
  expect("/model/merges", "{}", HasSubstr("model.merges"));
  expect("/model/merges/3", "\"abc\"", HasSubstr("model.merges[3]: found \"abc\""));
  expect("/model/merges/3", "[\"a\"]", HasSubstr("model.merges[3]"));
  expect("/model/merges/3", "[\"a\", \"no such\"]", HasSubstr("merges[3]: 'no such' is not in"));
  expect("/model/vocab", "", HasSubstr("model.vocab: found null, expected an object"));
  expect("/model/vocab", "{}", HasSubstr("model.vocab"));
  expect("/model/vocab/a", "\"x\"", HasSubstr("model.vocab['a']: found \"x\""));
  expect("/model/vocab/a", "-3", HasSubstr("id -3 of 'a'"));
  expect("/model/vocab/a", "5000000000", HasSubstr("id 5000000000 of 'a'"));
  expect("/model/vocab/a", "66", HasSubstr("id 66 is used twice"));
  expect("/model/type", "\"Unigram\"",
         HasSubstr("model.type: found \"Unigram\", expected one of BPE"));
  expect("/model/dropout", "0.1", HasSubstr("model.dropout: found 0.1"));
  expect("/model/continuing_subword_prefix", "\"##\"",
         HasSubstr("model.continuing_subword_prefix: found \"##\""));
  expect("/model/end_of_word_suffix", "\"</w>\"", HasSubstr("model.end_of_word_suffix"));
  expect("/model/fuse_unk", "3", HasSubstr("model.fuse_unk: found 3, expected true or false"));
  expect("/model", "[]", HasSubstr("model: found a list of 0, expected an object"));
  expect("/normalizer/type", "\"Nmt\"", HasSubstr("normalizer.type: found \"Nmt\""));
  expect("/normalizer", "7", HasSubstr("normalizer: found 7"));
  expect("/pre_tokenizer/pretokenizers/0/type", "\"BertPreTokenizer\"",
         HasSubstr("pre_tokenizer.pretokenizers[0].type: found \"BertPreTokenizer\""));
  expect("/pre_tokenizer/pretokenizers/0/behavior", "\"Both\"",
         HasSubstr("pretokenizers[0].behavior: found \"Both\", expected one of Removed"));
  expect("/pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"a\\\\w\"}",
         AllOf(HasSubstr("pretokenizers[0].pattern.Regex: a\\w"), HasSubstr("at byte 1")));
  expect("/pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"(a\"}",
         HasSubstr("pattern.Regex"));
  expect("/pre_tokenizer/pretokenizers/0/pattern", "{}", HasSubstr("pattern"));
  expect("/pre_tokenizer/pretokenizers/0/invert", "1", HasSubstr("pretokenizers[0].invert"));
  expect("/pre_tokenizer/pretokenizers/2", R"({"type": "Digits"})", HasSubstr("ByteLevel"));
  expect("/decoder/type", "\"WordPiece\"", HasSubstr("decoder.type: found \"WordPiece\""));
  expect("/decoder/decoders/1", R"({"type": "CTC"})", HasSubstr("decoder.decoders[1].type"),
         "llama2");
  expect("/post_processor/type", "\"BertProcessing\"", HasSubstr("post_processor.type"));
  expect("/post_processor/processors/1/special_tokens", "{}", HasSubstr("special_tokens"),
         "llama3");
  expect("/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0", "99999",
         HasSubstr("no token with id 99999"), "llama3");
  expect("/post_processor/processors/1/single", "[]", HasSubstr("single"), "llama3");
  expect("/added_tokens", "{}", HasSubstr("added_tokens: found an object of 0, expected a list"));
  expect("/added_tokens/0/id", "77", HasSubstr("added_tokens[0].id: '<|endoftext|>' has id 77"));
  expect("/added_tokens/0/id", "1e300", HasSubstr("added_tokens[0].id"));
  expect("/added_tokens/1/content", "null", HasSubstr("added_tokens[1].content: found null"));
  expect("/added_tokens/1/content", "\"<|endoftext|>\"", HasSubstr("is added twice"));
  expect("/added_tokens/1/lstrip", "\"no\"", HasSubstr("added_tokens[1].lstrip"));
  expect("/model/unk_token", "\"<nope>\"", HasSubstr("unk_token: '<nope>'"), "llama2");
}

TEST(TokenizerErrors, NotEvenJson) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("tokenizer.json: not JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("{\"model\": \"\xFF\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(std::string(1000000, '[')), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(std::string(1000000, '[') + std::string(1000000, ']')),
              HasSubstr("not a JSON object"));
}

TEST(TokenizerErrors, SequencesNestedWithoutEnd) {
  std::string node = R"({"type": "NFC"})";
  for (int i = 0; i < 20000; ++i) node = R"({"type":"Sequence","normalizers":[)" + node + "]}";
  EXPECT_THAT(ErrorWith("qwen", "/normalizer", R"({"type": "NFC"})"), HasSubstr("no error"));
  EXPECT_THAT(ErrorOf(R"({"normalizer": )" + node + "}"), HasSubstr("fewer sequences"));
}

TEST(TokenizerErrors, ConfigFiles) {
  const std::string json = ReadText(FixturePath("qwen.json"));
  EXPECT_THAT(ErrorOf(json, "{"), HasSubstr("tokenizer_config.json: not JSON"));
  EXPECT_THAT(ErrorOf(json, R"({"eos_token": "<none>"})"),
              HasSubstr("eos_token: '<none>' is no token"));
  EXPECT_THAT(ErrorOf(json, R"({"bos_token": 3})"), HasSubstr("bos_token: found 3"));
  EXPECT_THAT(ErrorOf(json, R"({"bos_token": {}})"), HasSubstr("bos_token.content: found null"));
  EXPECT_THAT(ErrorOf(json, R"({"add_bos_token": "yes"})"), HasSubstr("add_bos_token"));
}

TEST(TokenizerErrors, MissingFilesAreNamed) {
  const auto tokenizer = Tokenizer::Load("/no/such/folder");
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("/no/such/folder"));
  const auto empty = Tokenizer::Load(testing::TempDir());
  EXPECT_THAT(empty.status().message(), HasSubstr("tokenizer.json"));
}

// A file cut off anywhere is an error; a file with bytes changed is an error or a tokenizer that
// works on any text.
TEST(TokenizerErrors, TruncatedAndDamagedFiles) {
  RandomStream random(9);
  for (const std::string& fixture : FixtureNames()) {
    const std::string json = ReadText(FixturePath(fixture + ".json"));
    for (size_t length = 0; length + 2 < json.size(); length += 1 + random.Below(97)) {
      EXPECT_NE(ErrorOf(json.substr(0, length)), "no error") << fixture << " cut at " << length;
    }
    for (int round = 0; round < 60; ++round) {
      std::string damaged = json;
      for (int change = 0; change < 3; ++change) {
        damaged[random.Below(damaged.size())] = static_cast<char>(32 + random.Below(95));
      }
      const auto tokenizer = Tokenizer::FromFiles({damaged, "", ""});
      if (!tokenizer.ok()) continue;
      const std::string text = "Hello <|im_start|> wörld 123\r\n \xFF" + std::string(80, 'a');
      (*tokenizer)->Decode((*tokenizer)->Encode(text, true));
    }
  }
}

}  // namespace
}  // namespace orrery::rollout

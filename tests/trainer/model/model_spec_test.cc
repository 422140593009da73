#include "trainer/model/model_spec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/fakes/tiny_models.h"
#include "tests/trainer/model/temp_folder.h"

namespace orrery::model {
namespace {

// A config with one key replaced or added; the last of two equal keys is not what a reader may
// take, so the first is removed.
std::string Config(const std::string& type, const std::string& key = "",
                   const std::string& value = "") {
  std::vector<std::pair<std::string, std::string>> keys = {
      {"model_type", '"' + type + '"'}, {"vocab_size", "96"},        {"hidden_size", "32"},
      {"num_hidden_layers", "3"},       {"intermediate_size", "48"}, {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"}};
  if (type == "qwen3_moe") keys.push_back({"num_experts", "8"});
  std::erase_if(keys, [&](const auto& k) { return k.first == key; });
  if (!key.empty() && !value.empty()) keys.push_back({key, value});
  std::string text = "{";
  for (const auto& [k, v] : keys) text += (text.size() > 1 ? "," : "") + ('"' + k + "\":" + v);
  return text + "}";
}

ModelSpec Parse(const std::string& config) {
  const auto spec = ParseModelSpec(config, "c.json");
  EXPECT_TRUE(spec.ok()) << spec.status() << config;
  return spec.ok() ? *spec : ModelSpec{};
}

void ExpectError(const std::string& config, const std::string& key) {
  const auto spec = ParseModelSpec(config, "c.json");
  ASSERT_FALSE(spec.ok()) << config;
  const std::string message(spec.status().message());
  EXPECT_NE(message.find("c.json"), std::string::npos) << message;
  EXPECT_NE(message.find(key), std::string::npos) << message << " for " << config;
}

TEST(ModelSpecTest, ReadsTheFamilies) {
  const ModelSpec llama = Parse(Config("llama"));
  EXPECT_EQ(llama.heads.head_dim, 8);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_FALSE(llama.qkv_bias || llama.qk_norm || llama.tied_embeddings || llama.has_moe());
  EXPECT_EQ(llama.rope_inv_freq.size(), 4u);
  EXPECT_EQ(llama.rope_inv_freq[0], 1);
  EXPECT_NEAR(llama.rope_inv_freq[1], 0.1, 1e-8);
  const ModelSpec qwen2 = Parse(Config("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_TRUE(Parse(Config("qwen3")).qk_norm);
  EXPECT_TRUE(Parse(Config("llama", "attention_bias", "true")).output_bias);
  EXPECT_EQ(Parse(Config("qwen3", "head_dim", "64")).heads.q_width(), 256);
  EXPECT_EQ(Parse(Config("llama", "num_key_value_heads")).heads.num_kv_heads, 4);
}

TEST(ModelSpecTest, ReadsExperts) {
  const ModelSpec spec = Parse(Config("qwen3_moe"));
  EXPECT_EQ(spec.num_experts, 8);
  EXPECT_EQ(spec.experts_per_token, 8);
  EXPECT_FALSE(spec.normalise_top_k);
  EXPECT_EQ(spec.is_moe_layer, (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_EQ(Parse(Config("qwen3_moe", "mlp_only_layers", "[0, 2]")).is_moe_layer,
            (std::vector<uint8_t>{0, 1, 0}));
  EXPECT_EQ(Parse(Config("qwen3_moe", "decoder_sparse_step", "2")).is_moe_layer,
            (std::vector<uint8_t>{0, 1, 0}));
  // The default of 8 a token does not exceed what there is.
  EXPECT_EQ(Parse(Config("qwen3_moe", "num_experts", "3")).experts_per_token, 3);
}

TEST(ModelSpecTest, MissingKeysAreNamed) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                          "num_attention_heads", "model_type"}) {
    ExpectError(Config("llama", key), key);
  }
  ExpectError(Config("qwen3_moe", "num_experts"), "experts");
}

TEST(ModelSpecTest, BadValuesAreNamed) {
  const std::pair<const char*, std::vector<const char*>> bad[] = {
      {"model_type", {"\"gpt2\"", "7", "[]"}},
      {"vocab_size", {"0", "-5", "1e3", "\"96\"", "99999999999", "1.5", "true"}},
      {"hidden_size", {"0", "[32]", "18446744073709551615"}},
      {"num_hidden_layers", {"0", "100000"}},
      {"intermediate_size", {"-1", "{}"}},
      {"num_attention_heads", {"0", "3.5", "3"}},
      {"num_key_value_heads", {"0", "8", "3"}},
      {"head_dim", {"0", "7", "-8"}},
      {"max_position_embeddings", {"0", "1099511627776", "\"x\""}},
      {"rms_norm_eps", {"0", "-1e-6", "\"x\""}},
      {"initializer_range", {"-0.1", "{}"}},
      {"rope_theta", {"0", "-1", "\"1e4\""}},
      {"rope_scaling",
       {"7", "[]", "{\"type\":\"yarn\"}", "{\"rope_type\":\"linear\"}",
        "{\"rope_type\":\"linear\",\"factor\":0}", "{\"rope_type\":7}"}},
      {"attention_bias", {"1", "\"true\""}},
      {"mlp_bias", {"true"}},
      {"use_sliding_window", {"true"}},
      {"hidden_act", {"\"gelu\"", "3"}},
      {"tie_word_embeddings", {"\"yes\""}},
      {"quantization_config", {"{}"}},
      {"eos_token_id", {"\"2\"", "[1,\"2\"]", "-1", "2.5"}},
      {"bos_token_id", {"{}"}},
  };
  for (const auto& [key, values] : bad) {
    const std::string shown = std::string(key) == "rope_scaling" ? "rope" : key;
    for (const char* value : values) {
      const bool heads = std::string(key) == "num_attention_heads" && std::string(value) == "3";
      ExpectError(Config("llama", key, value), heads ? "num_" : shown);
    }
  }
  for (const auto& [key, value] : {std::pair{"num_experts", "0"},
                                   {"num_experts", "5000"},
                                   {"num_experts_per_tok", "9"},
                                   {"num_experts_per_tok", "0"},
                                   {"moe_intermediate_size", "0"},
                                   {"norm_topk_prob", "1"},
                                   {"decoder_sparse_step", "0"},
                                   {"mlp_only_layers", "[\"x\"]"},
                                   {"mlp_only_layers", "[-1]"}}) {
    ExpectError(Config("qwen3_moe", key, value), key);
  }
}

TEST(ModelSpecTest, Llama3ScalingIsChecked) {
  const auto scaling = [](const std::string& high, const std::string& factor) {
    return Config("llama", "rope_scaling",
                  R"({"rope_type":"llama3","low_freq_factor":1,"high_freq_factor":)" + high +
                      R"(,"original_max_position_embeddings":8192,"factor":)" + factor + "}");
  };
  const ModelSpec plain = Parse(Config("llama")), scaled = Parse(scaling("4", "8"));
  EXPECT_EQ(scaled.rope_inv_freq[0], plain.rope_inv_freq[0]);  // high frequencies are kept
  EXPECT_LT(scaled.rope_inv_freq[3], plain.rope_inv_freq[3]);
  ExpectError(scaling("1", "8"), "high_freq_factor");
  ExpectError(scaling("4", "0"), "factor");
  ExpectError(scaling("4", "-3"), "factor");
}

TEST(ModelSpecTest, WhatIsNotJsonIsAnError) {
  for (const char* text : {"", "{", "[]", "7", "{\"a\":}", "\xff\xfe", "{}}"}) {
    EXPECT_FALSE(ParseModelSpec(text, "c.json").ok()) << text;
  }
  EXPECT_FALSE(ParseModelSpec(std::string(100000, '['), "c.json").ok());
}

TEST(ModelSpecTest, EndOfSequenceIdsComeFromTheGenerationConfigFirst) {
  const TempFolder folder;
  folder.Write("config.json", Config("llama", "eos_token_id", "[2, 3]"));
  EXPECT_EQ(LoadModelSpec(folder.path())->eos_token_ids, (std::vector<int32_t>{2, 3}));
  folder.Write("generation_config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(LoadModelSpec(folder.path())->eos_token_ids, (std::vector<int32_t>{7}));
  folder.Write("generation_config.json", R"({"eos_token_id": "x"})");
  const auto bad = LoadModelSpec(folder.path());
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("generation_config.json"), absl::string_view::npos);
  EXPECT_FALSE(LoadModelSpec(folder / "nowhere").ok());
}

}  // namespace
}  // namespace orrery::model

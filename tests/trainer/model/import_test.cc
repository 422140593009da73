#include <rapidjson/document.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/model/gguf_builder.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/model/import_gguf.h"
#include "trainer/model/import_gguf_parts.h"
#include "trainer/model/import_gguf_vocab.h"
#include "trainer/model/safetensors.h"

namespace orrery::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kData = std::string(ORRERY_SOURCE_DIR) + "/tests/trainer/model/data/";

rapidjson::Document ParseJson(const std::string& text) {
  rapidjson::Document json;
  json.Parse(text.data(), text.size());
  EXPECT_FALSE(json.HasParseError()) << text.substr(0, 200);
  return json;
}

// data/tiny_FAMILY.gguf imported, and what make_golden_gguf.py says of it.
struct Tiny {
  TempFolder folder;
  absl::Status status;
  rapidjson::Document golden;
  std::string path;

  explicit Tiny(const std::string& family, const ImportOptions& options = {}) {
    path = folder / "model";
    status = ImportGguf(kData + "tiny_" + family + ".gguf", path, options);
    golden = ParseJson(Slurp(kData + "tiny_" + family + ".json"));
  }
  rapidjson::Document Json(const std::string& name) const {
    return ParseJson(Slurp(path + "/" + name));
  }
};

class EveryFamily : public testing::TestWithParam<const char*> {};

TEST_P(EveryFamily, TensorsAreTheOriginalModelsBitForBit) {
  const Tiny tiny(GetParam());
  ASSERT_TRUE(tiny.status.ok()) << tiny.status;
  EXPECT_EQ(tiny.folder.NumEntries(), 1u);  // no temporary folder stays
  const auto checkpoint = Checkpoint::Open(tiny.path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto& hashes = tiny.golden["tensors"];
  EXPECT_EQ((*checkpoint)->names().size(), hashes.MemberCount());
  for (const auto& member : hashes.GetObject()) {
    const FileTensor* tensor = (*checkpoint)->Find(member.name.GetString());
    ASSERT_NE(tensor, nullptr) << member.name.GetString();
    EXPECT_EQ(tensor->dtype, FileDtype::kBF16);  // auto: the matrices of the file are BF16
    const auto* bytes = reinterpret_cast<const char*>(tensor->data.data());
    EXPECT_EQ(Sha256({bytes, tensor->data.size()}), member.value.GetString())
        << member.name.GetString();
  }
}

// The parts of tokenizer.json on which the ids depend, against what the tokenizers library wrote.
TEST_P(EveryFamily, TokenizerIsTheOriginal) {
  const Tiny tiny(GetParam());
  ASSERT_TRUE(tiny.status.ok()) << tiny.status;
  const rapidjson::Document mine = tiny.Json("tokenizer.json");
  const auto& theirs = tiny.golden["tokenizer"];
  EXPECT_TRUE(mine["normalizer"] == theirs["normalizer"]);
  EXPECT_TRUE(mine["pre_tokenizer"] == theirs["pre_tokenizer"]);
  EXPECT_TRUE(mine["added_tokens"] == theirs["added_tokens"]);
  const auto& model = mine["model"];
  for (const char* key :
       {"type", "merges", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "dropout"}) {
    EXPECT_TRUE(model[key] == theirs["model"][key]) << key;
  }
  for (const auto& member : theirs["model"]["vocab"].GetObject()) {
    ASSERT_TRUE(model["vocab"].HasMember(member.name)) << member.name.GetString();
    EXPECT_TRUE(model["vocab"][member.name] == member.value) << member.name.GetString();
  }
  // Added tokens have their ids in the vocabulary too; nothing else is there, no [PAD300].
  size_t own = theirs["model"]["vocab"].MemberCount();
  for (const auto& token : theirs["added_tokens"].GetArray()) {
    if (!theirs["model"]["vocab"].HasMember(token["content"])) ++own;
    EXPECT_TRUE(model["vocab"][token["content"]] == token["id"]);
  }
  EXPECT_EQ(model["vocab"].MemberCount(), own);
}

INSTANTIATE_TEST_SUITE_P(Import, EveryFamily,
                         testing::Values("llama", "qwen2", "qwen3", "qwen3moe"));

TEST(ImportGguf, ConfigHoldsWhatTheKeysSay) {
  const Tiny tiny("qwen3moe");
  ASSERT_TRUE(tiny.status.ok()) << tiny.status;
  const rapidjson::Document config = tiny.Json("config.json");
  EXPECT_STREQ(config["model_type"].GetString(), "qwen3_moe");
  EXPECT_STREQ(config["architectures"][0].GetString(), "Qwen3MoeForCausalLM");
  EXPECT_EQ(config["hidden_size"].GetInt(), 32);
  EXPECT_EQ(config["head_dim"].GetInt(), 16);
  EXPECT_EQ(config["num_key_value_heads"].GetInt(), 2);
  EXPECT_EQ(config["num_experts"].GetInt(), 4);
  EXPECT_EQ(config["num_experts_per_tok"].GetInt(), 2);
  EXPECT_EQ(config["moe_intermediate_size"].GetInt(), 32);
  EXPECT_EQ(config["vocab_size"].GetInt(), 304);
  EXPECT_EQ(config["rms_norm_eps"].GetDouble(), 1e-6);  // not the float32's 9.99999997e-07
  EXPECT_EQ(config["rope_theta"].GetDouble(), 1e6);
  EXPECT_FALSE(config["tie_word_embeddings"].GetBool());
  EXPECT_STREQ(config["torch_dtype"].GetString(), "bfloat16");
  EXPECT_TRUE(Tiny("qwen2").Json("config.json")["tie_word_embeddings"].GetBool());

  const rapidjson::Document tokenizer = tiny.Json("tokenizer_config.json");
  EXPECT_STREQ(tokenizer["chat_template"].GetString(), "{{ messages[0]['content'] }}\n\"größer\"");
  EXPECT_STREQ(tokenizer["eos_token"].GetString(), "<|im_end|>");
  const rapidjson::Document generation = tiny.Json("generation_config.json");
  const rapidjson::Document all = tiny.Json("tokenizer.json");
  const auto& vocab = all["model"]["vocab"];
  EXPECT_TRUE(generation["eos_token_id"] == vocab["<|im_end|>"]);
}

TEST(ImportGguf, SentencePieceFilesPutTheBeginTokenFirst) {
  const Tiny tiny("llama");
  ASSERT_TRUE(tiny.status.ok()) << tiny.status;
  const rapidjson::Document mine = tiny.Json("tokenizer.json");
  EXPECT_TRUE(mine["decoder"] == tiny.golden["tokenizer"]["decoder"]);
  EXPECT_TRUE(mine["post_processor"] == tiny.golden["tokenizer"]["post_processor"]);
  EXPECT_FALSE(mine["pre_tokenizer"].IsObject());
}

TEST(ImportGguf, DtypeAndShardsAreAsAsked) {
  const Tiny tiny("qwen2", {.dtype = ImportOptions::Dtype::kFloat32, .max_shard_bytes = 50'000});
  ASSERT_TRUE(tiny.status.ok()) << tiny.status;
  EXPECT_STREQ(tiny.Json("config.json")["torch_dtype"].GetString(), "float32");
  EXPECT_TRUE(std::filesystem::exists(tiny.path + "/model.safetensors.index.json"));
  const auto wide = Checkpoint::Open(tiny.path);
  ASSERT_TRUE(wide.ok()) << wide.status();
  const Tiny narrow_tiny("qwen2");
  const auto narrow = Checkpoint::Open(narrow_tiny.path);
  for (const std::string& name : (*wide)->names()) {
    const FileTensor& a = *(*wide)->Find(name);
    const FileTensor& b = *(*narrow)->Find(name);
    ASSERT_EQ(a.dtype, FileDtype::kF32);
    std::vector<float> left(a.num_elements()), right(b.num_elements());
    ASSERT_TRUE(ToFloat32(a, left).ok() && ToFloat32(b, right).ok());
    EXPECT_EQ(left, right) << name;
  }
}

TEST(ImportGguf, ProgressCountsEveryTensor) {
  std::vector<size_t> done;
  size_t last_total = 0;
  ImportOptions options;
  options.progress = [&](std::string_view, size_t so_far, size_t total) {
    done.push_back(so_far);
    last_total = total;
  };
  const Tiny tiny("llama", options);
  ASSERT_TRUE(tiny.status.ok());
  ASSERT_EQ(done.size(), last_total);
  for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], i);
}

TEST(ImportGguf, AFolderInUseIsNotTouched) {
  const TempFolder folder;
  folder.Write("model/config.json", "mine");
  const std::string source = kData + "tiny_llama.gguf";
  const absl::Status status = ImportGguf(source, folder / "model");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(Slurp(folder / "model/config.json"), "mine");
  EXPECT_EQ(folder.NumEntries(), 1u);
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(ImportGguf(source, folder / "empty/").ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "empty/model.safetensors"));
  EXPECT_FALSE(ImportGguf(source, folder / "model/config.json/below").ok());
  EXPECT_EQ(ImportGguf(folder / "none.gguf", folder / "x").code(), absl::StatusCode::kNotFound);
}

// The smallest right Llama file; each test below makes one thing wrong.
struct Broken {
  std::string architecture = "llama";
  std::string model = "gpt2";
  std::string pre = "gpt-2";
  std::vector<std::string> tokens = {"a", "b", "ab", "<e>"};
  std::vector<int32_t> types = {1, 1, 1, 3};
  std::vector<std::string> merges = {"a b"};
  std::vector<float> scores = {0, 0, -1, 0};
  uint32_t heads = 2;
  uint32_t eos = 3;
  uint32_t blocks = 1;
  float norm = 1;
  bool with_down = true;
  GgufBuilder more;  // keys and tensors beside those

  GgufBuilder Build() const {
    GgufBuilder file = more;
    const auto key = [&](const char* name) { return architecture + "." + name; };
    file.Str("general.architecture", architecture);
    file.U32(key("context_length"), 8).U32(key("embedding_length"), 4);
    file.U32(key("block_count"), blocks).U32(key("feed_forward_length"), 6);
    file.U32(key("attention.head_count"), heads);
    file.F32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
    file.Str("tokenizer.ggml.model", model);
    if (!pre.empty()) file.Str("tokenizer.ggml.pre", pre);
    file.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", types);
    if (!merges.empty()) file.Strings("tokenizer.ggml.merges", merges);
    if (!scores.empty()) file.Floats("tokenizer.ggml.scores", scores);
    file.U32("tokenizer.ggml.eos_token_id", eos);
    file.Fill("token_embd.weight", {4, 4}, 1).Fill("output_norm.weight", {4}, norm);
    file.Fill("blk.0.attn_norm.weight", {4}, 1).Fill("blk.0.ffn_norm.weight", {4}, 1);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      file.Fill(fmt::format("blk.0.{}.weight", name), {4, 4}, 1);
    }
    file.Fill("blk.0.ffn_gate.weight", {6, 4}, 1).Fill("blk.0.ffn_up.weight", {6, 4}, 1);
    if (with_down) file.Fill("blk.0.ffn_down.weight", {4, 6}, 1);
    return file;
  }
  std::string Error() const {
    const TempFolder folder;
    const std::string path = folder.Write("x.gguf", Build().Build());
    const absl::Status status = ImportGguf(path, folder / "out");
    EXPECT_EQ(folder.NumEntries(), status.ok() ? 2u : 1u);  // nothing half-made
    return status.ok() ? "no error" : StatusText(status);
  }
};

TEST(ImportGguf, WrongFilesAreErrorsThatNameTheFault) {
  EXPECT_EQ(Broken{}.Error(), "no error");
  EXPECT_THAT((Broken{.architecture = "gemma3"}).Error(),
              AllOf(HasSubstr("'gemma3' is not supported"), HasSubstr("qwen3moe")));
  EXPECT_THAT((Broken{.model = "bert"}).Error(),
              AllOf(HasSubstr("'bert' is not supported"), HasSubstr("gpt2")));
  EXPECT_THAT((Broken{.pre = "tekken"}).Error(),
              AllOf(HasSubstr("'tekken' is not supported"), HasSubstr("smollm, qwen2")));
  EXPECT_THAT((Broken{.pre = ""}).Error(), HasSubstr("has no tokenizer.ggml.pre"));
  EXPECT_THAT((Broken{.merges = {}}).Error(), HasSubstr("without merges"));
  EXPECT_THAT((Broken{.merges = {"ab"}}).Error(), HasSubstr("'ab' is not two pieces"));
  EXPECT_THAT((Broken{.merges = {"a x"}}).Error(), HasSubstr("has no 'x'"));
  EXPECT_THAT((Broken{.merges = {"b a"}}).Error(), HasSubstr("has no 'ba'"));
  EXPECT_THAT((Broken{.tokens = {"a", "b", "b", "<e>"}}).Error(),
              HasSubstr("'b' stands there twice"));
  EXPECT_THAT((Broken{.tokens = {"a", "b", "ab", "\xff"}}).Error(), HasSubstr("not UTF-8"));
  EXPECT_THAT((Broken{.types = {1, 1, 1}}).Error(), HasSubstr("3 elements"));
  EXPECT_THAT((Broken{.types = {1, 1, 1, 9}}).Error(), HasSubstr("type 9"));
  EXPECT_THAT((Broken{.eos = 4}).Error(), HasSubstr("eos_token_id is 4"));
  EXPECT_THAT((Broken{.heads = 3}).Error(), HasSubstr("do not fit together"));
  EXPECT_THAT((Broken{.heads = 0}).Error(), HasSubstr("attention.head_count is 0"));
  EXPECT_THAT((Broken{.blocks = 2}).Error(), HasSubstr("no tensor 'blk.1.attn_norm.weight'"));
  EXPECT_THAT((Broken{.blocks = 4'000'000'000}).Error(), HasSubstr("block_count is 4000000000"));
  EXPECT_THAT((Broken{.with_down = false}).Error(), HasSubstr("no tensor 'blk.0.ffn_down.weight'"));
  EXPECT_THAT((Broken{.norm = std::nanf("")}).Error(),
              AllOf(HasSubstr("'output_norm.weight'"), HasSubstr("not finite")));
}

TEST(ImportGguf, GraphsThatWouldBeReadWronglyAreRefused) {
  const auto with = [](GgufBuilder more) { return Broken{.more = more}.Error(); };
  EXPECT_THAT(with(GgufBuilder().Str("llama.rope.scaling.type", "yarn")), HasSubstr("'yarn'"));
  EXPECT_EQ(with(GgufBuilder().Str("llama.rope.scaling.type", "none")), "no error");
  EXPECT_THAT(with(GgufBuilder().U32("llama.expert_count", 8)), HasSubstr("only qwen3moe"));
  EXPECT_THAT(with(GgufBuilder().U32("llama.rope.dimension_count", 1)), HasSubstr("rope over 1"));
  EXPECT_THAT(with(GgufBuilder().U32("llama.attention.sliding_window", 4)), HasSubstr("window"));
  EXPECT_THAT(with(GgufBuilder().F32("llama.rope.freq_base", -1)), HasSubstr("not a positive"));
  EXPECT_THAT(with(GgufBuilder().Fill("blk.0.attn_q.bias", {4}, 1)),
              AllOf(HasSubstr("'blk.0.attn_q.bias'"), HasSubstr("no place")));
  EXPECT_THAT(with(GgufBuilder().Fill("output.weight", {5, 4}, 1)),
              AllOf(HasSubstr("shape [5, 4]"), HasSubstr("must be [4, 4]")));
  EXPECT_THAT(with(GgufBuilder().Fill("rope_freqs.weight", {1}, 3)), HasSubstr("element 0 is 3"));
}

// Factors as Llama 3.2 has them: dim 64 (32 pairs), theta 500000, factor 32.
TEST(ImportGguf, LlamaThreesRopeFactorsBecomeRopeScaling) {
  std::string data;
  for (int j = 0; j < 32; ++j) {
    const double wavelength = 2 * M_PI * std::pow(500000.0, 2 * j / 64.0);
    const double smooth = (8192 / wavelength - 1) / 3;
    const double factor = wavelength < 2048   ? 1
                          : wavelength > 8192 ? 32
                                              : 1 / ((1 - smooth) / 32 + smooth);
    data += GgufBuilder::Raw(static_cast<float>(factor));
  }
  GgufBuilder file;
  file.Str("general.architecture", "llama").U32("llama.context_length", 131072);
  file.U32("llama.embedding_length", 64).U32("llama.block_count", 1);
  file.U32("llama.feed_forward_length", 6).U32("llama.attention.head_count", 1);
  file.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f).F32("llama.rope.freq_base", 500000);
  file.Tensor("rope_freqs.weight", {32}, 0, data).Fill("token_embd.weight", {4, 64}, 1);
  const TempFolder folder;
  const auto opened = GgufFile::Open(folder.Write("x.gguf", file.Build()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto config = ConfigFromGguf(**opened);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->llama3_rope.has_value());
  EXPECT_EQ(config->llama3_rope->factor, 32);
  const rapidjson::Document json = ParseJson(ConfigJson(*config, FileDtype::kF32));
  EXPECT_STREQ(json["rope_scaling"]["rope_type"].GetString(), "llama3");
  EXPECT_EQ(json["rope_scaling"]["original_max_position_embeddings"].GetInt(), 8192);
}

TEST(ImportGguf, MergesFromScoresPreferTheHighestScoreThenTheLongestLeft) {
  GgufBuilder file;
  file.Strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "abb", "bb", "ö", "öa"});
  file.Ints("tokenizer.ggml.token_type", {2, 1, 1, 1, 1, 1, 1, 1});
  file.Floats("tokenizer.ggml.scores", {0, -9, -9, -2, -3, -1, -9, -4});
  const TempFolder folder;
  const auto opened = GgufFile::Open(folder.Write("x.gguf", file.Build()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto vocab = ReadVocab(**opened);
  ASSERT_TRUE(vocab.ok()) << vocab.status();
  const auto merges = MergesFromScores(**opened, *vocab);
  ASSERT_TRUE(merges.ok()) << merges.status();
  EXPECT_THAT(*merges, ElementsAre(Merge("b", "b"), Merge("a", "b"), Merge("ab", "b"),
                                   Merge("a", "bb"), Merge("ö", "a")));
}

TEST(InterleavedRow, IsTheInverseOfTheConvertersPermutation) {
  // Heads [2, half] to [half, 2], as the converter does.
  constexpr int64_t kHeads = 3, kHalf = 4;
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t side = 0; side < 2; ++side) {
      for (int64_t pair = 0; pair < kHalf; ++pair) {
        const int64_t original = (head * 2 + side) * kHalf + pair;
        const int64_t stored = (head * kHalf + pair) * 2 + side;
        EXPECT_EQ(InterleavedRow(original, 2 * kHalf), stored);
      }
    }
  }
}

}  // namespace
}  // namespace orrery::model

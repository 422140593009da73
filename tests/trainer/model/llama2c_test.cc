// ImportLlama2c(): wrong files, and the real stories260K, whose imported weights must tell the
// story that llama2.c tells. The forward pass here is a plain one of its own, in double, written
// from the Hugging Face layout (rotary pairs half a head apart), so that it shows a wrong order of
// rows.
#include <rapidjson/document.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/model/import_llama2c.h"
#include "trainer/model/safetensors.h"

namespace orrery::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Row = std::vector<double>;

std::string DataFolder() {
  const char* data = std::getenv("ORRERY_DATA");
  return data != nullptr ? data : std::string(ORRERY_SOURCE_DIR) + "/../shared/data";
}

class PlainLlama {
 public:
  PlainLlama(const std::string& folder, int layers, int heads, int kv_heads)
      : checkpoint_(*Checkpoint::Open(folder)), layers_(layers), heads_(heads), kv_(kv_heads) {}

  // The most likely token after `ids`.
  int Next(const std::vector<int>& ids) const {
    std::vector<Row> rows;
    for (const int id : ids) rows.push_back(RowOf("model.embed_tokens.weight", id));
    for (int layer = 0; layer < layers_; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      Attend(at, rows);
      for (Row& row : rows) Feed(at, row);
    }
    const Row logits = Times("model.embed_tokens.weight", Norm("model.norm.weight", rows.back()));
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

 private:
  const float* Data(const std::string& name) const {
    return reinterpret_cast<const float*>(checkpoint_->Get(name)->data.data());
  }
  Row RowOf(const std::string& name, int row) const {
    const int64_t cols = checkpoint_->Get(name)->shape.back();
    return Row(Data(name) + row * cols, Data(name) + (row + 1) * cols);
  }
  Row Times(const std::string& name, const Row& x) const {
    Row y(static_cast<size_t>(checkpoint_->Get(name)->shape[0]));
    const float* weight = Data(name);
    for (double& value : y) {
      for (const double input : x) value += input * *weight++;
    }
    return y;
  }
  Row Norm(const std::string& name, Row x) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * Data(name)[i];
    return x;
  }
  static void Rotate(Row& x, size_t head_dim, int position) {
    const size_t half = head_dim / 2;
    for (size_t head = 0; head < x.size(); head += head_dim) {
      for (size_t j = 0; j < half; ++j) {
        const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(j) /
                                                              static_cast<double>(head_dim));
        const double a = x[head + j];
        const double b = x[head + j + half];
        x[head + j] = a * std::cos(angle) - b * std::sin(angle);
        x[head + j + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  void Attend(const std::string& at, std::vector<Row>& rows) const {
    std::vector<Row> q, k, v;
    const size_t head_dim = rows[0].size() / static_cast<size_t>(heads_);
    for (size_t t = 0; t < rows.size(); ++t) {
      const Row x = Norm(at + "input_layernorm.weight", rows[t]);
      q.push_back(Times(at + "self_attn.q_proj.weight", x));
      k.push_back(Times(at + "self_attn.k_proj.weight", x));
      v.push_back(Times(at + "self_attn.v_proj.weight", x));
      Rotate(q[t], head_dim, static_cast<int>(t));
      Rotate(k[t], head_dim, static_cast<int>(t));
    }
    for (size_t t = 0; t < rows.size(); ++t) {
      Row mixed(rows[t].size());
      for (int head = 0; head < heads_; ++head) {
        Mix(q[t].data() + static_cast<size_t>(head) * head_dim, k, v, t,
            static_cast<size_t>(head / (heads_ / kv_)) * head_dim, head_dim,
            mixed.data() + static_cast<size_t>(head) * head_dim);
      }
      const Row out = Times(at + "self_attn.o_proj.weight", mixed);
      for (size_t i = 0; i < out.size(); ++i) rows[t][i] += out[i];
    }
  }
  static void Mix(const double* q, const std::vector<Row>& k, const std::vector<Row>& v,
                  size_t last, size_t offset, size_t head_dim, double* out) {
    Row weights(last + 1);
    double sum = 0;
    for (size_t s = 0; s <= last; ++s) {
      double score = 0;
      for (size_t i = 0; i < head_dim; ++i) score += q[i] * k[s][offset + i];
      weights[s] = std::exp(score / std::sqrt(static_cast<double>(head_dim)));
      sum += weights[s];
    }
    for (size_t s = 0; s <= last; ++s) {
      for (size_t i = 0; i < head_dim; ++i) out[i] += weights[s] / sum * v[s][offset + i];
    }
  }
  void Feed(const std::string& at, Row& row) const {
    const Row x = Norm(at + "post_attention_layernorm.weight", row);
    Row gate = Times(at + "mlp.gate_proj.weight", x);
    const Row up = Times(at + "mlp.up_proj.weight", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const Row down = Times(at + "mlp.down_proj.weight", gate);
    for (size_t i = 0; i < row.size(); ++i) row[i] += down[i];
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  int layers_, heads_, kv_;
};

// The pieces of a llama2.c tokenizer file: int32 longest; per token float score, int32 length,
// bytes.
std::vector<std::string> Pieces(const std::string& file) {
  std::vector<std::string> pieces;
  for (size_t at = 4; at < file.size();) {
    const auto length = static_cast<size_t>(LoadLittle<int32_t>(file.data() + at + 4));
    pieces.push_back(file.substr(at + 8, length));
    at += 8 + length;
  }
  return pieces;
}

TEST(ImportLlama2c, Stories260KTellsItsStory) {
  const std::string data = DataFolder() + "/stories260k/";
  if (!std::filesystem::exists(data + "stories260K.bin")) {
    GTEST_SKIP() << "no " << data << "stories260K.bin; set ORRERY_DATA to the folder of the data";
  }
  const TempFolder folder;
  const absl::Status status = ImportLlama2c(data + "stories260K.bin", "{}", folder / "model");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Slurp(folder / "model/tokenizer.json"), "{}");
  EXPECT_THAT(Slurp(folder / "model/config.json"),
              AllOf(HasSubstr("\"tie_word_embeddings\": true"), HasSubstr("\"vocab_size\": 512"),
                    HasSubstr("\"rms_norm_eps\": 1e-05")));
  const PlainLlama model(folder / "model", 5, 8, 4);
  const std::vector<std::string> pieces = Pieces(Slurp(data + "tok512.bin"));
  ASSERT_EQ(pieces.size(), 512u);
  // The begin token and " Once upon a time", as llama2.c encodes it.
  std::vector<int> ids = {1, 403, 407, 261, 378};
  std::string prompt, story;
  for (size_t i = 1; i < ids.size(); ++i) prompt += pieces[static_cast<size_t>(ids[i])];
  EXPECT_EQ(prompt, " Once upon a time");
  const std::string expected = ", there was a little girl named Lily. She loved to play outside";
  while (story.size() < expected.size()) {
    ids.push_back(model.Next(ids));
    story += pieces.at(static_cast<size_t>(ids.back()));
  }
  EXPECT_EQ(story.substr(0, expected.size()), expected);
}

// A model of dim 4, hidden 6, 2 layers, 2 heads, 1 kv head, 5 tokens, 3 positions; float i is i.
std::string TinyFile(std::vector<int32_t> header = {4, 6, 2, 2, 1, 5, 3}, int floats = 400) {
  std::string file(reinterpret_cast<const char*>(header.data()), header.size() * 4);
  for (int i = 0; i < floats; ++i) {
    const auto value = static_cast<float>(i);
    file.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return file;
}

// Embedding 20; per layer 4 + 16 + 8 + 8 + 16 + 4 + 24 * 3 = 128; norm 4; rotary tables 3 * 2.
constexpr int kFloats = 20 + 2 * 128 + 4 + 6;

std::string Error(const std::string& file) {
  const TempFolder folder;
  const absl::Status status = ImportLlama2c(folder.Write("x.bin", file), "{}", folder / "out");
  EXPECT_EQ(folder.NumEntries(), status.ok() ? 2u : 1u);
  return status.ok() ? "no error" : StatusText(status);
}

TEST(ImportLlama2c, TensorsGoWhereTheyBelong) {
  const TempFolder folder;
  const std::string path = folder.Write("x.bin", TinyFile({4, 6, 2, 2, 1, -5, 3}, kFloats + 20));
  ASSERT_TRUE(ImportLlama2c(path, "{}", folder / "out").ok());
  const auto checkpoint = Checkpoint::Open(folder / "out");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto values = [&](const std::string& name) {
    const FileTensor tensor = *(*checkpoint)->Get(name);
    std::vector<float> floats(static_cast<size_t>(tensor.num_elements()));
    EXPECT_TRUE(ToFloat32(tensor, floats).ok());
    return floats;
  };
  EXPECT_EQ(values("model.layers.1.input_layernorm.weight")[0], 24);  // behind 20 + 4
  // Heads of two: pairs and halves are the same rows, so the order stays.
  EXPECT_EQ(values("model.layers.1.self_attn.q_proj.weight")[4], 28 + 16 + 4);
  EXPECT_EQ(values("model.layers.0.self_attn.k_proj.weight")[0], 28 + 32);
  EXPECT_EQ(values("lm_head.weight")[0], kFloats);
  EXPECT_THAT((*checkpoint)->Get("lm_head.weight")->shape, testing::ElementsAre(5, 4));
  EXPECT_THAT(Slurp(folder / "out/config.json"), HasSubstr("\"tie_word_embeddings\": false"));
}

TEST(ImportLlama2c, WrongFilesAreErrors) {
  EXPECT_EQ(Error(TinyFile({4, 6, 2, 2, 1, 5, 3}, kFloats)), "no error");
  EXPECT_THAT(Error("short"), HasSubstr("too short"));
  EXPECT_THAT(Error(TinyFile({4, 6, 2, 2, 1, 5, 3}, kFloats - 1)),
              AllOf(HasSubstr("ends within the rotary tables"), HasSubstr("truncated")));
  EXPECT_THAT(Error(TinyFile({4, 6, 2, 2, 1, 5, 3}, kFloats + 1)), HasSubstr("4 bytes are left"));
  EXPECT_THAT(Error(TinyFile({4, 6, 2, 2, 1, -5, 3}, kFloats)), HasSubstr("the classifier"));
  EXPECT_THAT(Error(TinyFile({4, 6, 2, 3, 1, 5, 3})), HasSubstr("heads 3"));
  EXPECT_THAT(Error(TinyFile({4, 6, 2, 0, 1, 5, 3})), HasSubstr("makes no model"));
  EXPECT_THAT(Error(TinyFile({-4, 6, 2, 2, 1, 5, 3})), HasSubstr("makes no model"));
  EXPECT_THAT(Error(TinyFile({1 << 30, 1 << 30, 9999, 2, 1, 1 << 30, 3})),
              HasSubstr("the embedding [1073741824, 1073741824]"));
  EXPECT_THAT(Error("GGUF" + std::string(200, '\0')), HasSubstr("makes no model"));
  std::string nan = TinyFile({4, 6, 2, 2, 1, 5, 3}, kFloats);
  const float bad = std::nanf("");
  std::memcpy(nan.data() + 28 + 4 * 21, &bad, 4);
  EXPECT_THAT(Error(nan), AllOf(HasSubstr("input_layernorm"), HasSubstr("not finite")));
}

}  // namespace
}  // namespace orrery::model

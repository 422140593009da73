#include "trainer/model/import_llama2c.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "trainer/model/import_gguf_parts.h"
#include "trainer/model/imported_config.h"
#include "trainer/model/json_writer.h"
#include "trainer/model/safetensors_writer.h"
#include "trainer/model/staged_folder.h"

namespace orrery::model {
namespace {

constexpr int kHeaderInts = 7;

// llama2.c fixes what its header does not say: rope 10000, epsilon 1e-5, begin 1, end 2.
absl::StatusOr<ImportedConfig> ReadHeader(std::string_view file, const std::string& path) {
  if (file.size() < kHeaderInts * sizeof(int32_t)) {
    return InvalidInput("{}: {} bytes, too short for the header of a llama2.c model", path,
                        file.size());
  }
  int64_t header[kHeaderInts];
  for (int i = 0; i < kHeaderInts; ++i) {
    header[i] = LoadLittle<int32_t>(file.data() + i * sizeof(int32_t));
  }
  ImportedConfig config;
  config.tied = header[5] > 0;
  header[5] = std::abs(header[5]);
  const auto [d, hidden, layers, heads, kv_heads, vocab, context] = header;
  const bool sane = *std::min_element(header, header + kHeaderInts) > 0 && d % heads == 0 &&
                    heads % kv_heads == 0 && d / heads % 2 == 0 && layers <= 10'000 && vocab > 2;
  if (!sane) {
    return InvalidInput(
        "{}: header (dim {}, hidden {}, layers {}, heads {}, kv heads {}, vocabulary "
        "{}, context {}) makes no model: not a legacy llama2.c file",
        path, d, hidden, layers, heads, kv_heads, vocab, context);
  }
  config.hidden_size = d;
  config.intermediate_size = hidden;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = d / heads;
  config.vocab_size = vocab;
  config.context_length = context;
  config.bos = 1;
  config.eos = {2};
  return config;
}

using Floats = std::span<const std::byte>;

// Walks over the file's tensors, which follow each other without names.
class Reader {
 public:
  Reader(std::string_view file, const std::string& path)
      : rest_(file.substr(kHeaderInts * sizeof(int32_t))), path_(path) {}

  // The next rows x cols floats.
  absl::StatusOr<Floats> Take(std::string_view what, int64_t rows, int64_t cols) {
    uint64_t bytes = 0;
    const bool overflow =
        __builtin_mul_overflow(static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(float), &bytes);
    if (overflow || bytes > rest_.size()) {
      return InvalidInput(
          "{}: the file ends within {} [{}, {}]: {} bytes are left (truncated: fetch "
          "it again)",
          path_, what, rows, cols, rest_.size());
    }
    const Floats floats = std::as_bytes(std::span(rest_.data(), bytes));
    rest_.remove_prefix(bytes);
    for (size_t i = 0; i < bytes; i += sizeof(float)) {
      if (!std::isfinite(LoadLittle<float>(floats.data() + i))) {
        return InvalidInput("{}: {} [{}, {}]: element {} is not finite", path_, what, rows, cols,
                            i / sizeof(float));
      }
    }
    return floats;
  }
  absl::Status ExpectEnd() const {
    if (rest_.empty()) return absl::OkStatus();
    return InvalidInput("{}: {} bytes are left over: not a legacy llama2.c file", path_,
                        rest_.size());
  }

 private:
  std::string_view rest_;
  const std::string& path_;
};

// A tensor of all layers; each layer has `rows` rows of `cols`.
struct LayerStack {
  std::string_view name;  // below model.layers.N.
  int64_t rows = 0;       // 0: a vector of `cols`
  int64_t cols = 0;
  bool interleaved = false;

  size_t LayerBytes() const {
    return static_cast<size_t>(std::max<int64_t>(rows, 1) * cols) * sizeof(float);
  }
};

TensorSource LayerTensor(const LayerStack& stack, int64_t layer, Floats all, int64_t head_dim) {
  TensorSource source;
  source.name = fmt::format("model.layers.{}.{}", layer, stack.name);
  source.shape = stack.rows == 0 ? std::vector<int64_t>{stack.cols}
                                 : std::vector<int64_t>{stack.rows, stack.cols};
  const Floats data =
      all.subspan(static_cast<size_t>(layer) * stack.LayerBytes(), stack.LayerBytes());
  if (!stack.interleaved) {
    return FromBytes(std::move(source.name), FileDtype::kF32, std::move(source.shape), data);
  }
  source.write = [data, stack, head_dim](const ByteSink& sink) {
    const size_t row_bytes = static_cast<size_t>(stack.cols) * sizeof(float);
    for (int64_t row = 0; row < stack.rows; ++row) {
      const auto from = static_cast<size_t>(InterleavedRow(row, head_dim));
      RETURN_IF_ERROR(sink(data.subspan(from * row_bytes, row_bytes)));
    }
    return absl::OkStatus();
  };
  return source;
}

absl::StatusOr<std::vector<TensorSource>> ReadTensors(std::string_view file,
                                                      const ImportedConfig& config,
                                                      const std::string& path) {
  const int64_t d = config.hidden_size;
  const int64_t h = config.intermediate_size;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  const LayerStack stacks[] = {
      {"input_layernorm.weight", 0, d},
      {"self_attn.q_proj.weight", d, d, true},
      {"self_attn.k_proj.weight", kv, d, true},
      {"self_attn.v_proj.weight", kv, d},
      {"self_attn.o_proj.weight", d, d},
      {"post_attention_layernorm.weight", 0, d},
      {"mlp.gate_proj.weight", h, d},
      {"mlp.down_proj.weight", d, h},
      {"mlp.up_proj.weight", h, d},
  };
  Reader reader(file, path);
  std::vector<TensorSource> sources;
  ASSIGN_OR_RETURN(const Floats embedding, reader.Take("the embedding", config.vocab_size, d));
  sources.push_back(
      FromBytes("model.embed_tokens.weight", FileDtype::kF32, {config.vocab_size, d}, embedding));
  for (const LayerStack& stack : stacks) {
    const int64_t rows = config.num_layers * std::max<int64_t>(stack.rows, 1);
    ASSIGN_OR_RETURN(const Floats all, reader.Take(stack.name, rows, stack.cols));
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      sources.push_back(LayerTensor(stack, layer, all, config.head_dim));
    }
  }
  ASSIGN_OR_RETURN(const Floats norm, reader.Take("the final norm", 1, d));
  sources.push_back(FromBytes("model.norm.weight", FileDtype::kF32, {d}, norm));
  RETURN_IF_ERROR(
      reader.Take("the rotary tables", config.context_length, config.head_dim).status());
  if (!config.tied) {
    ASSIGN_OR_RETURN(const Floats head, reader.Take("the classifier", config.vocab_size, d));
    sources.push_back(FromBytes("lm_head.weight", FileDtype::kF32, {config.vocab_size, d}, head));
  }
  RETURN_IF_ERROR(reader.ExpectEnd());
  return sources;
}

std::string TokenizerConfigJson(const ImportedConfig& config) {
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  json.Field("tokenizer_class", "PreTrainedTokenizerFast");
  json.Field("bos_token", "<s>");
  json.Field("eos_token", "</s>");
  json.Field("unk_token", "<unk>");
  json.Field("add_bos_token", true);
  json.Field("add_eos_token", false);
  json.Field("clean_up_tokenization_spaces", false);
  json.Field("model_max_length", config.context_length);
  json.EndObject();
  return json.text() + "\n";
}

}  // namespace

absl::Status ImportLlama2c(const std::string& model_path, std::string_view tokenizer_json,
                           const std::string& out_folder) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(model_path));
  ASSIGN_OR_RETURN(const ImportedConfig config, ReadHeader(file->view(), model_path));
  ASSIGN_OR_RETURN(const std::vector<TensorSource> sources,
                   ReadTensors(file->view(), config, model_path));
  ASSIGN_OR_RETURN(const std::unique_ptr<StagedFolder> folder, StagedFolder::Create(out_folder));
  RETURN_IF_ERROR(folder->Write("config.json", ConfigJson(config, FileDtype::kF32)));
  RETURN_IF_ERROR(folder->Write("generation_config.json", GenerationConfigJson(config)));
  RETURN_IF_ERROR(folder->Write("tokenizer.json", tokenizer_json));
  RETURN_IF_ERROR(folder->Write("tokenizer_config.json", TokenizerConfigJson(config)));
  RETURN_IF_ERROR(WriteCheckpoint(folder->path(), sources));
  return folder->Commit();
}

}  // namespace orrery::model

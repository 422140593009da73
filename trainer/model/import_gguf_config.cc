// general.architecture and its keys as an ImportedConfig.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "orchestrator/base/status.h"
#include "trainer/model/import_gguf_parts.h"

namespace orrery::model {
namespace {

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxSize = int64_t{1} << 31;

absl::StatusOr<ImportedFamily> Family(const GgufFile& file, std::string_view architecture) {
  if (architecture == "llama") return ImportedFamily::kLlama;
  if (architecture == "qwen2") return ImportedFamily::kQwen2;
  if (architecture == "qwen3") return ImportedFamily::kQwen3;
  if (architecture == "qwen3moe") return ImportedFamily::kQwen3Moe;
  return InvalidInput(
      "{}: general.architecture '{}' is not supported; supported are llama, qwen2, "
      "qwen3 and qwen3moe",
      file.path(), Printable(architecture));
}

// Reads the keys of one architecture: Size("block_count") is the key "llama.block_count".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture) {}

  std::string Name(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  bool Has(std::string_view key) const { return file_.Has(Name(key)); }

  absl::StatusOr<int64_t> Size(std::string_view key, int64_t largest = kMaxSize) const {
    ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Name(key)));
    if (value < 1 || value > largest) {
      return InvalidInput("{}: {} is {}, not within 1 to {}", file_.path(), Name(key), value,
                          largest);
    }
    return value;
  }
  absl::StatusOr<int64_t> SizeOr(std::string_view key, int64_t otherwise) const {
    if (!Has(key)) return otherwise;
    return Size(key);
  }
  // A positive finite number.
  absl::StatusOr<float> Positive(std::string_view key) const {
    ASSIGN_OR_RETURN(const float value, file_.GetFloat(Name(key)));
    if (!(value > 0) || !std::isfinite(value)) {
      return InvalidInput("{}: {} is {}, not a positive number", file_.path(), Name(key), value);
    }
    return value;
  }

 private:
  const GgufFile& file_;
  std::string_view architecture_;
};

// What would change the graph and is not written into config.json is refused, not dropped.
absl::Status RefuseOtherGraphs(const GgufFile& file, const Keys& keys,
                               const ImportedConfig& config) {
  if (keys.Has("rope.scaling.type")) {
    ASSIGN_OR_RETURN(const std::string_view type, file.GetString(keys.Name("rope.scaling.type")));
    if (type != "none") {
      return InvalidInput(
          "{}: {} '{}' is not supported; supported are files without rope scaling "
          "and Llama 3's rope_freqs tensor",
          file.path(), keys.Name("rope.scaling.type"), Printable(type));
    }
  }
  ASSIGN_OR_RETURN(const int64_t rope, keys.SizeOr("rope.dimension_count", config.head_dim));
  ASSIGN_OR_RETURN(const int64_t values, keys.SizeOr("attention.value_length", config.head_dim));
  if (rope != config.head_dim || values != config.head_dim) {
    return InvalidInput(
        "{}: heads of {} with rope over {} and values of {} are not supported: all "
        "three must be equal",
        file.path(), config.head_dim, rope, values);
  }
  if (keys.Has("attention.sliding_window")) {
    ASSIGN_OR_RETURN(const int64_t window, file.GetInt(keys.Name("attention.sliding_window")));
    if (window > 0 && window < config.context_length) {
      return InvalidInput("{}: {} of {} is not supported: attention here sees the whole context",
                          file.path(), keys.Name("attention.sliding_window"), window);
    }
  }
  if (config.family == ImportedFamily::kQwen3Moe || !keys.Has("expert_count")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int64_t experts, file.GetInt(keys.Name("expert_count")));
  if (experts == 0) return absl::OkStatus();
  return InvalidInput("{}: {} is {}: of the mixtures of experts only qwen3moe is supported",
                      file.path(), keys.Name("expert_count"), experts);
}

absl::Status ReadExperts(const GgufFile& file, const Keys& keys, ImportedConfig& config) {
  if (config.family != ImportedFamily::kQwen3Moe) return absl::OkStatus();
  ASSIGN_OR_RETURN(config.num_experts, keys.Size("expert_count"));
  ASSIGN_OR_RETURN(config.experts_per_token, keys.Size("expert_used_count"));
  ASSIGN_OR_RETURN(config.expert_intermediate_size, keys.Size("expert_feed_forward_length"));
  if (config.experts_per_token > config.num_experts) {
    return InvalidInput("{}: {} experts a token of {} experts", file.path(),
                        config.experts_per_token, config.num_experts);
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, const Keys& keys, ImportedConfig& config) {
  ASSIGN_OR_RETURN(config.num_heads, keys.Size("attention.head_count"));
  ASSIGN_OR_RETURN(config.num_kv_heads, keys.SizeOr("attention.head_count_kv", config.num_heads));
  ASSIGN_OR_RETURN(config.head_dim,
                   keys.SizeOr("attention.key_length", config.hidden_size / config.num_heads));
  const bool whole = keys.Has("attention.key_length") || config.hidden_size % config.num_heads == 0;
  if (!whole || config.num_heads % config.num_kv_heads != 0 || config.head_dim % 2 != 0) {
    return InvalidInput(
        "{}: {} heads, {} key-value heads and head size {} do not fit together "
        "(hidden size {})",
        file.path(), config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size);
  }
  return absl::OkStatus();
}

// The factor by which Llama 3.1 divides the frequency of pair j (Meta's llama-models,
// apply_scaling; transformers' _compute_llama3_parameters).
double Llama3Factor(int64_t j, const ImportedConfig& config, const Llama3Rope& rope) {
  const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(config.head_dim);
  const double wavelength = 2 * std::numbers::pi * std::pow(config.rope_theta, exponent);
  const double turns = static_cast<double>(rope.original_context) / wavelength;
  if (turns > rope.high_freq_factor) return 1;
  if (turns < rope.low_freq_factor) return rope.factor;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return 1 / ((1 - smooth) / rope.factor + smooth);
}

// rope_freqs.weight holds the factors themselves. Every Llama 3.1 to 3.3 has low 1, high 4 and an
// original context of 8192; the slowest pair shows the factor. The whole tensor must agree.
absl::Status ReadRopeFactors(const GgufFile& file, ImportedConfig& config) {
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  const bool shape_fits = tensor->shape == std::vector<int64_t>{config.head_dim / 2};
  if (config.family != ImportedFamily::kLlama || !shape_fits) {
    return InvalidInput("{}: tensor 'rope_freqs.weight' of shape {} does not belong to this model",
                        file.path(), ShapeText(tensor->shape));
  }
  std::vector<float> factors(static_cast<size_t>(config.head_dim / 2));
  DequantizeRow(*tensor, 0, factors);
  const Llama3Rope rope = {.factor = factors.back()};
  for (size_t j = 0; j < factors.size(); ++j) {
    const double expected = Llama3Factor(static_cast<int64_t>(j), config, rope);
    // The file's factors were computed in float32 through a power and a quotient.
    if (!(std::abs(factors[j] - expected) <= 1e-4 * std::abs(expected))) {
      return InvalidInput(
          "{}: 'rope_freqs.weight' element {} is {}, by Llama 3's rule it would be "
          "{}: this rope scaling is not supported",
          file.path(), j, factors[j], expected);
    }
  }
  if (rope.factor != 1) config.llama3_rope = rope;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> TokenId(const GgufFile& file, std::string_view name,
                                               int64_t vocab_size) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  if (!file.Has(key)) return std::nullopt;
  ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
  if (id < 0 || id >= vocab_size) {
    return InvalidInput("{}: {} is {}, outside the vocabulary of {}", file.path(), key, id,
                        vocab_size);
  }
  return id;
}

absl::Status ReadTokenIds(const GgufFile& file, ImportedConfig& config) {
  ASSIGN_OR_RETURN(config.bos, TokenId(file, "bos", config.vocab_size));
  ASSIGN_OR_RETURN(config.pad, TokenId(file, "padding", config.vocab_size));
  // The end of the text, of a turn, of a message: each ends what is generated.
  for (const char* name : {"eos", "eot", "eom"}) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, TokenId(file, name, config.vocab_size));
    const bool known =
        !id || std::find(config.eos.begin(), config.eos.end(), *id) != config.eos.end();
    if (!known) config.eos.push_back(*id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportedConfig> ConfigFromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string_view architecture, file.GetString("general.architecture"));
  ImportedConfig config;
  ASSIGN_OR_RETURN(config.family, Family(file, architecture));
  const Keys keys(file, architecture);
  ASSIGN_OR_RETURN(config.hidden_size, keys.Size("embedding_length"));
  ASSIGN_OR_RETURN(config.num_layers, keys.Size("block_count", kMaxLayers));
  ASSIGN_OR_RETURN(config.intermediate_size, keys.Size("feed_forward_length"));
  ASSIGN_OR_RETURN(config.context_length, keys.Size("context_length"));
  ASSIGN_OR_RETURN(config.rms_norm_eps, keys.Positive("attention.layer_norm_rms_epsilon"));
  if (keys.Has("rope.freq_base")) {
    ASSIGN_OR_RETURN(config.rope_theta, keys.Positive("rope.freq_base"));
  }
  RETURN_IF_ERROR(ReadHeads(file, keys, config));
  RETURN_IF_ERROR(ReadExperts(file, keys, config));
  RETURN_IF_ERROR(RefuseOtherGraphs(file, keys, config));
  RETURN_IF_ERROR(ReadRopeFactors(file, config));
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return InvalidInput("{}: has no matrix 'token_embd.weight'", file.path());
  }
  config.vocab_size = embedding->shape[0];
  config.tied = file.FindTensor("output.weight") == nullptr;
  RETURN_IF_ERROR(ReadTokenIds(file, config));
  return config;
}

}  // namespace orrery::model

#include "trainer/model/model_spec.h"

#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::model {
namespace {

using rapidjson::Value;

// Largest sizes that are believed; a larger one is a damaged file.
constexpr int64_t kMaxSize = int64_t{1} << 24;

// Reads typed keys of one JSON object; the first mistake is kept as status().
class Reader {
 public:
  Reader(const Value& object, std::string_view place) : object_(object), place_(place) {}

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Value* Find(const char* key) const {
    const auto it = object_.FindMember(key);
    return it == object_.MemberEnd() || it->value.IsNull() ? nullptr : &it->value;
  }
  int64_t Int(const char* key, std::optional<int64_t> fallback, int64_t min, int64_t max) {
    const Value* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(InvalidInput("{}: key \"{}\" is missing", place_, key));
      return fallback.value_or(min);
    }
    if (!value->IsInt64() || value->GetInt64() < min || value->GetInt64() > max) {
      Fail(InvalidInput("{}: \"{}\" must be an integer from {} to {}", place_, key, min, max));
      return min;
    }
    return value->GetInt64();
  }
  double Number(const char* key, std::optional<double> fallback) {
    const Value* value = Find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->IsNumber() || !std::isfinite(value->GetDouble())) {
      Fail(InvalidInput("{}: \"{}\" must be a number", place_, key));
      return fallback.value_or(1);
    }
    return value->GetDouble();
  }
  double Positive(const char* key, std::optional<double> fallback) {
    const double value = Number(key, fallback);
    if (value <= 0) Fail(InvalidInput("{}: \"{}\" is {}, must be above 0", place_, key, value));
    return value;
  }
  bool Bool(const char* key, bool fallback) {
    const Value* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->IsBool()) Fail(InvalidInput("{}: \"{}\" must be true or false", place_, key));
    return value->IsBool() ? value->GetBool() : fallback;
  }
  std::string Text(const char* key, std::string_view fallback) {
    const Value* value = Find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->IsString()) Fail(InvalidInput("{}: \"{}\" must be text", place_, key));
    return value->IsString() ? value->GetString() : std::string(fallback);
  }
  void RequireBool(const char* key, bool wanted, bool fallback) {
    if (Bool(key, fallback) != wanted) {
      Fail(InvalidInput("{}: \"{}\": {} is not supported", place_, key, !wanted));
    }
  }
  const std::string& place() const { return place_; }

 private:
  const Value& object_;
  std::string place_;
  absl::Status status_;
};

absl::StatusOr<rapidjson::Document> ParseObject(std::string_view json, std::string_view place) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  if (document.HasParseError()) {
    return InvalidInput("{}: not JSON: {} at byte {}", place,
                        rapidjson::GetParseError_En(document.GetParseError()),
                        document.GetErrorOffset());
  }
  if (!document.IsObject()) return InvalidInput("{}: must hold a JSON object", place);
  return document;
}

// One integer or a list of them, none below 0.
std::vector<int32_t> Ids(Reader& reader, const char* key) {
  const Value* value = reader.Find(key);
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  const auto add = [&](const Value& id) {
    if (!id.IsInt() || id.GetInt() < 0) {
      return reader.Fail(
          InvalidInput("{}: \"{}\" must be an integer or a list of integers, none "
                       "below 0",
                       reader.place(), key));
    }
    ids.push_back(id.GetInt());
  };
  if (!value->IsArray()) {
    add(*value);
    return ids;
  }
  for (const Value& id : value->GetArray()) add(id);
  return ids;
}

// Llama 3's frequency scaling (transformers, rope type "llama3"): low frequencies are divided by
// factor, high ones kept, with a smooth passage between.
void ScaleLlama3(Reader& rope, std::vector<float>* inv_freq) {
  const double factor = rope.Positive("factor", std::nullopt);
  const double low = rope.Positive("low_freq_factor", std::nullopt);
  const double high = rope.Positive("high_freq_factor", std::nullopt);
  const double old_context = rope.Positive("original_max_position_embeddings", std::nullopt);
  if (high <= low) {
    rope.Fail(InvalidInput("{}: \"high_freq_factor\" {} must be above \"low_freq_factor\" {}",
                           rope.place(), high, low));
  }
  if (!rope.status().ok()) return;
  for (float& f : *inv_freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > old_context / low) {
      f = static_cast<float>(f / factor);
    } else if (wavelength >= old_context / high) {
      const double smooth = (old_context / wavelength - low) / (high - low);
      f = static_cast<float>((1 - smooth) * f / factor + smooth * f);
    }
  }
}

// rope_theta and rope_scaling (transformers 4), or rope_parameters (transformers 5).
void ReadRope(Reader& config, ModelSpec* spec) {
  const Value* parameters = config.Find("rope_parameters");
  const Value* scaling = parameters != nullptr ? parameters : config.Find("rope_scaling");
  if (scaling != nullptr && !scaling->IsObject()) {
    return config.Fail(InvalidInput("{}: \"rope_scaling\" must be an object", config.place()));
  }
  double theta = config.Positive("rope_theta", 10000.0);
  std::string type = "default";
  const Value empty(rapidjson::kObjectType);
  Reader rope(scaling != nullptr ? *scaling : empty, config.place() + " (rope)");
  if (scaling != nullptr) {
    theta = rope.Positive("rope_theta", theta);
    type = rope.Text("rope_type", rope.Text("type", "default"));
  }
  const int64_t half = spec->heads.head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(2 * half);
    spec->rope_inv_freq.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  if (type == "linear") {
    const double factor = rope.Positive("factor", std::nullopt);
    for (float& f : spec->rope_inv_freq) f = static_cast<float>(f / factor);
  } else if (type == "llama3") {
    ScaleLlama3(rope, &spec->rope_inv_freq);
  } else if (type != "default") {
    config.Fail(
        InvalidInput("{}: rope type \"{}\" is not supported; known: default, linear, llama3",
                     config.place(), type));
  }
  config.Fail(rope.status());
}

struct KnownFamily {
  const char* model_type;
  const char* architecture;
  Family family;
};
constexpr KnownFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", Family::kLlama},
    {"qwen2", "Qwen2ForCausalLM", Family::kQwen2},
    {"qwen3", "Qwen3ForCausalLM", Family::kQwen3},
    {"qwen3_moe", "Qwen3MoeForCausalLM", Family::kQwen3Moe},
};

// "architectures" may be absent; where it names a head or a model of another kind, it is believed.
absl::Status CheckArchitecture(const Reader& config, const KnownFamily& known) {
  const Value* list = config.Find("architectures");
  if (list == nullptr) return absl::OkStatus();
  for (const Value* name = list->IsArray() ? list->Begin() : nullptr;
       name != nullptr && name != list->End(); ++name) {
    if (name->IsString() && name->GetString() == std::string_view(known.architecture)) {
      return absl::OkStatus();
    }
  }
  std::string names;
  for (const Value* name = list->IsArray() ? list->Begin() : nullptr;
       name != nullptr && name != list->End(); ++name) {
    if (name->IsString())
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name->GetString());
  }
  return InvalidInput(
      "{}: \"architectures\": [{}] is not supported; with \"model_type\": \"{}\" it "
      "is \"{}\"",
      config.place(), names, known.model_type, known.architecture);
}

absl::StatusOr<Family> ReadFamily(Reader& config) {
  const std::string type = config.Text("model_type", "");
  for (const KnownFamily& known : kFamilies) {
    if (type != known.model_type) continue;
    RETURN_IF_ERROR(CheckArchitecture(config, known));
    return known.family;
  }
  return InvalidInput(
      "{}: \"model_type\": \"{}\" is not supported; known: llama, qwen2, qwen3, "
      "qwen3_moe",
      config.place(), type);
}

void ReadExperts(Reader& config, ModelSpec* spec) {
  // transformers 5 writes num_local_experts.
  const char* key = config.Find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  spec->num_experts = config.Int(key, std::nullopt, 1, 4096);
  spec->experts_per_token = config.Int(
      "num_experts_per_tok", std::min<int64_t>(8, spec->num_experts), 1, spec->num_experts);
  spec->expert_width = config.Int("moe_intermediate_size", 768, 1, kMaxSize);
  spec->normalise_top_k = config.Bool("norm_topk_prob", false);
  const int64_t step = config.Int("decoder_sparse_step", 1, 1, kMaxSize);
  for (int64_t i = 0; i < spec->num_layers; ++i) spec->is_moe_layer[i] = (i + 1) % step == 0;
  for (const int32_t layer : Ids(config, "mlp_only_layers")) {
    if (layer < spec->num_layers) spec->is_moe_layer[layer] = 0;
  }
}

void ReadShapes(Reader& config, ModelSpec* spec) {
  spec->vocab_size = config.Int("vocab_size", std::nullopt, 1, kMaxSize);
  spec->hidden_size = config.Int("hidden_size", std::nullopt, 1, kMaxSize);
  spec->num_layers = config.Int("num_hidden_layers", std::nullopt, 1, 4096);
  spec->intermediate_size = config.Int("intermediate_size", std::nullopt, 1, kMaxSize);
  spec->heads.num_heads = config.Int("num_attention_heads", std::nullopt, 1, 65536);
  spec->heads.num_kv_heads =
      config.Int("num_key_value_heads", spec->heads.num_heads, 1, spec->heads.num_heads);
  spec->heads.head_dim =
      config.Int("head_dim", spec->hidden_size / spec->heads.num_heads, 0, 65536);
  spec->max_positions = config.Int("max_position_embeddings", 2048, 1, kMaxSize);
  spec->rms_norm_eps = static_cast<float>(config.Positive("rms_norm_eps", 1e-6));
  spec->initializer_range = static_cast<float>(config.Positive("initializer_range", 0.02));
  if (!config.status().ok()) return;
  if (spec->heads.head_dim <= 0 || spec->heads.head_dim % 2 != 0) {
    config.Fail(InvalidInput("{}: \"head_dim\" {} must be even and positive", config.place(),
                             spec->heads.head_dim));
  }
  if (spec->heads.num_heads % spec->heads.num_kv_heads != 0) {
    config.Fail(
        InvalidInput("{}: \"num_attention_heads\" {} is not a multiple of "
                     "\"num_key_value_heads\" {}",
                     config.place(), spec->heads.num_heads, spec->heads.num_kv_heads));
  }
}

// What differs between families beyond shapes, and what none of them may ask for.
void ReadVariants(Reader& config, ModelSpec* spec) {
  const bool attention_bias = config.Bool("attention_bias", false);
  spec->qkv_bias = attention_bias || spec->family == Family::kQwen2;
  spec->output_bias = attention_bias;
  spec->qk_norm = spec->family == Family::kQwen3 || spec->family == Family::kQwen3Moe;
  spec->tied_embeddings = config.Bool("tie_word_embeddings", false);
  config.RequireBool("mlp_bias", false, false);
  config.RequireBool("use_sliding_window", false, false);
  const std::string activation = config.Text("hidden_act", "silu");
  if (activation != "silu") {
    config.Fail(InvalidInput("{}: \"hidden_act\": \"{}\" is not supported; known: silu",
                             config.place(), activation));
  }
  if (config.Find("quantization_config") != nullptr) {
    config.Fail(InvalidInput("{}: \"quantization_config\": quantised checkpoints are not supported",
                             config.place()));
  }
  spec->checkpoint_dtype = config.Text("dtype", config.Text("torch_dtype", "float32"));
}

}  // namespace

float ModelSpec::attention_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.head_dim)));
}

absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::string_view place) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseObject(config_json, place));
  Reader config(document, place);
  ModelSpec spec;
  ASSIGN_OR_RETURN(spec.family, ReadFamily(config));
  ReadShapes(config, &spec);
  RETURN_IF_ERROR(config.status());
  spec.is_moe_layer.assign(static_cast<size_t>(spec.num_layers), 0);
  if (spec.family == Family::kQwen3Moe) ReadExperts(config, &spec);
  ReadRope(config, &spec);
  ReadVariants(config, &spec);
  RETURN_IF_ERROR(config.status());
  spec.eos_token_ids = Ids(config, "eos_token_id");
  if (const std::vector<int32_t> bos = Ids(config, "bos_token_id"); !bos.empty()) {
    spec.bos_token_id = bos[0];
  }
  RETURN_IF_ERROR(config.status());
  return spec;
}

absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(text, path));
  const std::string generation = folder + "/generation_config.json";
  if (std::filesystem::exists(generation)) {
    ASSIGN_OR_RETURN(const std::string generation_text, ReadFile(generation));
    ASSIGN_OR_RETURN(const rapidjson::Document document, ParseObject(generation_text, generation));
    Reader reader(document, generation);
    std::vector<int32_t> ids = Ids(reader, "eos_token_id");
    RETURN_IF_ERROR(reader.status());
    if (!ids.empty()) spec.eos_token_ids = std::move(ids);
  }
  return spec;
}

}  // namespace orrery::model

#include "trainer/model/imported_config.h"

#include "orchestrator/base/check.h"
#include "trainer/model/json_writer.h"

namespace orrery::model {
namespace {

struct FamilyNames {
  const char* model_type;
  const char* architecture;
};

FamilyNames NamesOf(ImportedFamily family) {
  switch (family) {
    case ImportedFamily::kLlama:
      return {"llama", "LlamaForCausalLM"};
    case ImportedFamily::kQwen2:
      return {"qwen2", "Qwen2ForCausalLM"};
    case ImportedFamily::kQwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    case ImportedFamily::kQwen3Moe:
      return {"qwen3_moe", "Qwen3MoeForCausalLM"};
  }
  return {};
}

void WriteTokenIds(JsonWriter& json, const ImportedConfig& config, bool all_eos) {
  if (config.bos) json.Field("bos_token_id", *config.bos);
  if (all_eos && config.eos.size() > 1) {
    json.Array("eos_token_id");
    for (const int64_t id : config.eos) json.Value(id);
    json.EndArray();
  } else if (!config.eos.empty()) {
    json.Field("eos_token_id", config.eos.front());
  }
  if (config.pad) json.Field("pad_token_id", *config.pad);
}

void WriteRope(JsonWriter& json, const ImportedConfig& config) {
  json.Field("rope_theta", config.rope_theta);
  if (!config.llama3_rope) return json.NullField("rope_scaling");
  json.Object("rope_scaling");
  json.Field("rope_type", "llama3");
  json.Field("factor", config.llama3_rope->factor);
  json.Field("low_freq_factor", config.llama3_rope->low_freq_factor);
  json.Field("high_freq_factor", config.llama3_rope->high_freq_factor);
  json.Field("original_max_position_embeddings", config.llama3_rope->original_context);
  json.EndObject();
}

void WriteFamily(JsonWriter& json, const ImportedConfig& config) {
  switch (config.family) {
    case ImportedFamily::kLlama:
      json.Field("attention_bias", false);
      json.Field("mlp_bias", false);
      break;
    case ImportedFamily::kQwen2:
      json.Field("use_sliding_window", false);
      break;
    case ImportedFamily::kQwen3:
      json.Field("attention_bias", false);
      json.Field("use_sliding_window", false);
      break;
    case ImportedFamily::kQwen3Moe:
      json.Field("attention_bias", false);
      json.Field("use_sliding_window", false);
      json.Field("num_experts", config.num_experts);
      json.Field("num_experts_per_tok", config.experts_per_token);
      json.Field("moe_intermediate_size", config.expert_intermediate_size);
      json.Field("norm_topk_prob", true);
      json.Field("decoder_sparse_step", 1);
      json.Array("mlp_only_layers");
      json.EndArray();
      json.Field("router_aux_loss_coef", 0.001f);
      json.Field("output_router_logits", false);
      break;
  }
}

}  // namespace

std::string ConfigJson(const ImportedConfig& config, FileDtype dtype) {
  CHECK(dtype == FileDtype::kF32 || dtype == FileDtype::kBF16);
  const FamilyNames names = NamesOf(config.family);
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  json.Array("architectures");
  json.Value(names.architecture);
  json.EndArray();
  json.Field("model_type", names.model_type);
  json.Field("hidden_size", config.hidden_size);
  json.Field("intermediate_size", config.intermediate_size);
  json.Field("num_hidden_layers", config.num_layers);
  json.Field("num_attention_heads", config.num_heads);
  json.Field("num_key_value_heads", config.num_kv_heads);
  json.Field("head_dim", config.head_dim);
  json.Field("vocab_size", config.vocab_size);
  json.Field("max_position_embeddings", config.context_length);
  json.Field("hidden_act", "silu");
  json.Field("rms_norm_eps", config.rms_norm_eps);
  WriteRope(json, config);
  json.Field("tie_word_embeddings", config.tied);
  json.Field("attention_dropout", 0.0f);
  json.Field("initializer_range", 0.02f);
  WriteFamily(json, config);
  WriteTokenIds(json, config, /*all_eos=*/false);
  json.Field("use_cache", true);
  json.Field("torch_dtype", dtype == FileDtype::kF32 ? "float32" : "bfloat16");
  json.EndObject();
  return json.text() + "\n";
}

std::string GenerationConfigJson(const ImportedConfig& config) {
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  WriteTokenIds(json, config, /*all_eos=*/true);
  json.EndObject();
  return json.text() + "\n";
}

}  // namespace orrery::model

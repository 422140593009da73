#include "trainer/model/known_shapes.h"

#include <fmt/ranges.h>

#include <array>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::model {
namespace {

struct Shape {
  std::string_view name, config_json;
};

constexpr std::array kShapes = {
    Shape{"qwen3-30b-a3b", R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
      "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "num_experts": 128,
      "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
      "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "max_position_embeddings": 40960, "tie_word_embeddings": false,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})"},
    Shape{"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "max_position_embeddings": 40960, "tie_word_embeddings": false,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})"},
    Shape{"qwen3-1.7b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "max_position_embeddings": 40960, "tie_word_embeddings": true,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})"},
    Shape{"qwen3-0.6b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "max_position_embeddings": 40960, "tie_word_embeddings": true,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})"},
    Shape{"smollm2-135m", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
      "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536, "rms_norm_eps": 1e-05,
      "rope_theta": 100000.0, "max_position_embeddings": 8192, "tie_word_embeddings": true,
      "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"})"},
};

}  // namespace

std::vector<std::string_view> KnownShapeNames() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::StatusOr<ModelSpec> KnownShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return ParseModelSpec(shape.config_json, shape.name);
  }
  return InvalidInput("no shape is called '{}'; known are {}", name,
                      fmt::join(KnownShapeNames(), ", "));
}

ModelSpec FirstLayers(ModelSpec spec, int64_t layers) {
  CHECK(layers >= 1 && layers <= spec.num_layers);
  spec.num_layers = layers;
  spec.is_moe_layer.resize(static_cast<size_t>(layers));
  return spec;
}

}  // namespace orrery::model

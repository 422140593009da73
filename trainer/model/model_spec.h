// What a Hugging Face config.json says of a transformer, checked and in one form for every family.
// A value that is not supported is an error naming its key, never ignored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/experts/routed_experts.h"
#include "kernels/rope/qk_norm_rope.h"

namespace orrery::model {

enum class Family : uint8_t { kLlama, kQwen2, kQwen3, kQwen3Moe };

struct ModelSpec {
  Family family = Family::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // d
  int64_t num_layers = 0;
  kernels::HeadShape heads;
  int64_t intermediate_size = 0;  // f of dense layers
  float rms_norm_eps = 1e-6f;
  int64_t max_positions = 0;         // max_position_embeddings
  std::vector<float> rope_inv_freq;  // head_dim / 2 values, scaling applied
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool qk_norm = false;
  float initializer_range = 0.02f;
  // Mixture of experts; num_experts 0 where there is none.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_width = 0;  // moe_intermediate_size
  bool normalise_top_k = true;
  std::vector<uint8_t> is_moe_layer;   // num_layers flags
  std::string checkpoint_dtype;        // as the file says: float32, bfloat16, float16
  std::vector<int32_t> eos_token_ids;  // of generation_config.json, else config.json
  int32_t bos_token_id = -1;

  bool moe(int64_t layer) const { return is_moe_layer[layer] != 0; }
  // Which of the layers with experts `layer` is: its place in recorded routing.
  int64_t moe_index(int64_t layer) const {
    return std::count(is_moe_layer.begin(), is_moe_layer.begin() + layer, uint8_t{1});
  }
  int64_t num_moe_layers() const { return moe_index(num_layers); }
  // Of an expert's id in recorded routing.
  int32_t expert_id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  bool has_moe() const { return num_experts > 0; }
  float attention_scale() const;
  kernels::ExpertsShape experts_shape() const {
    return {num_experts, experts_per_token, hidden_size, expert_width, normalise_top_k};
  }
};

// place: the file's name, for messages.
absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::string_view place);

// Reads FOLDER/config.json, and FOLDER/generation_config.json where it exists.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& folder);

}  // namespace orrery::model

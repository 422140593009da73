// What an importer (GGUF, llama2.c) knows of a model, and the config.json and
// generation_config.json that say it to Hugging Face readers. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/model/file_dtype.h"

namespace orrery::model {

enum class ImportedFamily : uint8_t { kLlama, kQwen2, kQwen3, kQwen3Moe };

// Llama 3.1's stretching of the rotary frequencies.
struct Llama3Rope {
  float factor = 8;
  float low_freq_factor = 1;
  float high_freq_factor = 4;
  int64_t original_context = 8192;
};

struct ImportedConfig {
  ImportedFamily family = ImportedFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  float rms_norm_eps = 1e-5f;
  float rope_theta = 10000;
  std::optional<Llama3Rope> llama3_rope;
  bool tied = false;  // lm_head is the embedding
  // kQwen3Moe only.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_intermediate_size = 0;
  // Token ids, where known; several tokens may end a text.
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;
  std::optional<int64_t> pad;
};

// REQUIRES: dtype is kF32 or kBF16.
std::string ConfigJson(const ImportedConfig& config, FileDtype dtype);
std::string GenerationConfigJson(const ImportedConfig& config);

}  // namespace orrery::model

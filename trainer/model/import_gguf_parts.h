// The three parts of ImportGguf(): configuration, tensors and tokenizer of a GGUF file in Hugging
// Face's terms. Separate so that each is tested alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/model/gguf.h"
#include "trainer/model/imported_config.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::model {

absl::StatusOr<ImportedConfig> ConfigFromGguf(const GgufFile& file);

// One source a Hugging Face tensor, in the order of the graph; they read from `file` when written.
// Every tensor of the file must be used and have the shape the configuration says.
// REQUIRES: dtype is kF32 or kBF16.
absl::StatusOr<std::vector<TensorSource>> TensorsFromGguf(const GgufFile& file,
                                                          const ImportedConfig& config,
                                                          FileDtype dtype);

struct ImportedTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

absl::StatusOr<ImportedTokenizer> TokenizerFromGguf(const GgufFile& file);

// "gpt-2, smollm, ...".
std::string KnownPreTokenizers();

// In Llama's GGUF (and in llama2.c) rotary pairs lie side by side, in Hugging Face's layout half a
// head apart: the row of the file that belongs into row `row` of q_proj or k_proj.
constexpr int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t within = row % head_dim;
  const int64_t half = head_dim / 2;
  return row - within + 2 * (within % half) + within / half;
}

}  // namespace orrery::model

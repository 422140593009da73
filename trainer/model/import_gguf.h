// A GGUF file as a Hugging Face model folder: config.json, generation_config.json, tokenizer.json,
// tokenizer_config.json (with the chat template) and safetensors.
//
// Graphs: general.architecture llama, qwen2, qwen3 and qwen3moe. Tensors: F32, F16, BF16, Q8_0,
// Q4_0, Q4_1. Tokenizers: byte-level BPE (model gpt2) with the pre-tokenizers of
// KnownPreTokenizers(), and SentencePiece BPE (model llama). Anything else is an error that names
// it and what is supported, as is a tensor that the graph does not use.
//
// The folder appears complete or not at all. Memory: a few rows beside the mapped file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace orrery::model {

struct ImportOptions {
  enum class Dtype : uint8_t {
    kAuto,  // bfloat16 where every matrix in the file is BF16, else float32: nothing is lost
    kFloat32,
    kBFloat16,
  };
  Dtype dtype = Dtype::kAuto;
  int64_t max_shard_bytes = 5'000'000'000;
  // Called before each tensor that is written: its name, how many are done, how many there are.
  std::function<void(std::string_view name, size_t done, size_t total)> progress;
};

// `out_folder` must not exist or be empty.
absl::Status ImportGguf(const std::string& gguf_path, const std::string& out_folder,
                        const ImportOptions& options = {});

}  // namespace orrery::model

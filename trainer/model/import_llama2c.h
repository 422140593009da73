// A model file of llama2.c (github.com/karpathy/llama2.c, export.py, legacy_export: the first
// format, without a magic number) as a Hugging Face Llama folder. The folder appears complete or
// not at all.
//
// File: seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, negative where the
// classifier is not the embedding, max_seq_len), then float32 tensors, each for all layers
// together: embedding [V,d]; attention norms [L,d]; wq [L,d,d]; wk, wv [L,kv,d]; wo [L,d,d]; ffn
// norms [L,d]; w1 (gate) [L,h,d]; w2 (down) [L,d,h]; w3 (up) [L,h,d]; final norm [d]; two rotary
// tables [S, head/2], ignored; classifier [V,d] where the vocabulary size is negative.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace orrery::model {

// `tokenizer_json` is the text of the folder's tokenizer.json, whose tokens 1 and 2 are begin and
// end. `out_folder` must not exist or be empty.
absl::Status ImportLlama2c(const std::string& model_path, std::string_view tokenizer_json,
                           const std::string& out_folder);

}  // namespace orrery::model

// The tokenizer of a llama2.c model (github.com/karpathy/llama2.c, tokenizer.py and run.c) as the
// text of a tokenizer.json, for `orrery import`.
//
// The file: the longest token's length, int32, then for each token its score, float32, its length,
// int32, and its bytes; all little-endian, ids in order. Tokens 0, 1 and 2 are <unk>, <s> and </s>
// (the latter two between line feeds), 3 to 258 the 256 bytes as <0x00> to <0xFF>. A space stands
// where SentencePiece has U+2581.
//
// llama2.c puts a space in front of a text, looks each character up, takes its bytes where it is
// unknown, and then joins the adjacent pair whose joined text is the token of the highest score,
// leftmost first. The same is done here by merges, one for each way a token splits into two others,
// ordered by score.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::rollout {

// A text that holds U+2581 itself is read as if it held a space, as SentencePiece does; llama2.c
// takes its bytes.
absl::StatusOr<std::string> Llama2cTokenizerJson(std::string_view bytes);

}  // namespace orrery::rollout

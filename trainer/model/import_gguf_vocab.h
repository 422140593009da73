// The vocabulary of a GGUF file: pieces, their kinds, and merges, stored (byte-level BPE) or
// derived from scores (SentencePiece BPE). Views live as long as the file.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/model/gguf.h"

namespace orrery::model {

// The numbers of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufVocab {
  std::vector<std::string_view> pieces;  // by id
  std::vector<TokenKind> kinds;          // by id
  std::unordered_map<std::string_view, int64_t> ids;
};

// A merge of two pieces, the earliest in the list first.
using Merge = std::pair<std::string_view, std::string_view>;

// Checks that pieces are UTF-8 and unique. "[PAD151669]" and the like, which converters append to
// fill the embedding, are left out.
absl::StatusOr<GgufVocab> ReadVocab(const GgufFile& file);

// tokenizer.ggml.merges. Every merge consists of pieces and makes a piece.
absl::StatusOr<std::vector<Merge>> ReadMerges(const GgufFile& file, const GgufVocab& vocab);

// Every split of a normal piece into two normal pieces, the highest score of the result first:
// SentencePiece merges whatever gives the piece of the highest score.
absl::StatusOr<std::vector<Merge>> MergesFromScores(const GgufFile& file, const GgufVocab& vocab);

}  // namespace orrery::model

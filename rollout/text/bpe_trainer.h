// Trains a small byte-level BPE vocabulary (Sennrich et al. 2016) on given texts and writes it as a
// tokenizer.json in Qwen's form: NFC, Qwen's split into words with single digits, bytes.
//
// Ids: the 256 bytes in byte order, then the merged tokens in the order they were made, then the
// special tokens. Deterministic: of the pairs that are most frequent the one with the smallest ids
// is merged. Pure function, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::rollout {

// `vocab_size` counts everything, special tokens too. It is not reached where no pair occurs twice
// any more. Special tokens found in the texts are no training material.
absl::StatusOr<std::string> TrainByteLevelBpe(std::span<const std::string> texts,
                                              int32_t vocab_size,
                                              std::span<const std::string> special_tokens);

}  // namespace orrery::rollout

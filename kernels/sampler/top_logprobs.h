// The n most likely tokens of a row of logits with their log-probs, for whoever wants to see what
// else might have been said. Log-probs are those of the sampled token (sampler.h): of the
// unfiltered distribution at the sampling temperature, before penalties. Most likely first, ties to
// the lower id.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_limits.h"

namespace orrery::kernels {

inline constexpr int64_t kMaxTopLogprobs = 20;

struct TopLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

// out: n of them. REQUIRES: 1 <= n <= min(kMaxTopLogprobs, logits.size()), finite logits.
void TopLogprobs(std::span<const float> logits, float temperature, int64_t n, TopLogprob* out);

// In double, for tests.
void TopLogprobsReference(std::span<const float> logits, double temperature, int64_t n,
                          int32_t* token_ids, double* logprobs);

// On a GPU: a warp takes the n largest of each piece of 1,024 logits, a warp merges those of a row.
struct TopLogprobsPlan {
  int64_t rows = 0, n = 0, num_pieces = 0;
  int64_t piece_warps = 0;  // of a block of the first kernel; its grid is [piece_blocks, rows]
  int64_t piece_blocks = 0;
  int64_t row_warps = 0;  // of a block of the second; its grid is [row_blocks]
  int64_t row_blocks = 0;
  int64_t workspace_bytes = 0;  // [rows, num_pieces, n] keys of 8 bytes
};

// REQUIRES: 1 <= n <= kMaxTopLogprobs, vocabulary at most 256 pieces, rows at most 65,535.
TopLogprobsPlan PlanTopLogprobs(int64_t rows, int64_t vocabulary, int64_t n,
                                const DeviceLimits& limits);

}  // namespace orrery::kernels

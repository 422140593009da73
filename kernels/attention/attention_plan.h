// How a launch of attention covers rows and chunks (attention_cuda.h): a pure function of the shape
// and the GPU. With few rows each chunk gets a thread block of its own and the last of a row's
// folds them; no choice changes a bit of the result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/cuda/device_limits.h"

namespace orrery::kernels::cuda {

inline constexpr int64_t kChunkTokens = 256;

// What one chunk leaves for the fold: maximum and sum of 8 queries, and their outputs.
constexpr int64_t AttentionPartialFloats(int64_t head_dim) { return 16 + 8 * head_dim; }

// The workspace of a split launch begins with one counter a (row, key-value head), always in the
// same place; partials follow.
inline constexpr int64_t kAttentionCounters = 1024;

struct AttentionPlan {
  bool split = false;
  int64_t num_chunks = 1;        // thread blocks a (row, key-value head)
  bool whole_chunks = false;     // split, and each thread block has an SM's memory to itself
  int64_t warpgroup_blocks = 0;  // for tiles; 0: by the portable kernel, a block each
  int64_t workspace_bytes = 0;
};

// rows: those that go alone. max_position: bound of the rows' absolute positions.
AttentionPlan PlanAttention(const HeadShape& heads, int64_t rows, int64_t max_position,
                            const DeviceLimits& limits);

// Rows of one sequence that lie side by side in the batch, at consecutive positions: their queries
// of a key-value head, at most kTileQueries, read its keys and values together.
inline constexpr int64_t kTileQueries = 128;
struct AttentionTile {
  int32_t first_row = 0, num_rows = 0;
};

// The rows of a batch by the kernel that is faster for them; padding (negative positions) is in
// neither list.
struct AttentionDivision {
  std::vector<AttentionTile> tiles;
  std::vector<int32_t> lone_rows;
};
AttentionDivision DivideRows(std::span<const int32_t> positions,
                             std::span<const int32_t> sequence_of, const HeadShape& heads);

}  // namespace orrery::kernels::cuda

// What the tensor-core kernels of attention are given.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/attention_cuda.h"

namespace orrery::kernels::cuda {

struct AttentionParams {
  const __nv_bfloat16* queries;
  int64_t query_stride;
  const char* k;
  const char* v;
  int num_kv_heads, group;
  float scale_log2;
  AttentionRows rows;
  __nv_bfloat16* out;
  int64_t out_stride;
};

// Keys, or values, of a block and head in shared memory lie as in the cache: where chunk
// 2 pair + odd (odd 0 or 1) of a row begins, in bytes. This is PanelOffset (wgmma_operands.cuh) of
// kBlockTokens rows, written so that `pair`, a constant in unrolled loops, stays apart from what
// differs between threads: called with one chunk number the kernels get longer and the tiles spill.
__device__ __forceinline__ int PieceOffset(int row, int pair, int odd) {
  const int swizzled = (odd ^ (row & 7)) ^ (2 * (pair % 4));
  return pair / 4 * static_cast<int>(kBlockTokens) * 128 + row * 128 + swizzled * 16;
}

inline constexpr int kMaxGroup = 8;  // heads that share a key-value head

// Below: head_dim 64 or 128, a group of at most kMaxGroup.

// Rows alone: those in lone_rows, or every row where it is null.
void AttentionOfRows(const AttentionParams& params, const int32_t* lone_rows, int64_t num_rows,
                     int64_t head_dim, KvFormat format, const AttentionPlan& plan, void* workspace,
                     cudaStream_t stream);
// The tiles of params.rows.
void AttentionOfTiles(const AttentionParams& params, int64_t head_dim, KvFormat format,
                      cudaStream_t stream);
// The same by warpgroup products, on `blocks` thread blocks that deal the tiles among themselves.
void AttentionByWarpgroups(const AttentionParams& params, int64_t head_dim, KvFormat format,
                           int64_t blocks, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

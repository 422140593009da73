// Between the fused projection and attention on a GPU (qk_norm_rope.h has the formulas): optional
// norm of queries and keys, rotation, and keys and values written to the paged cache, in one pass
// over the row.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/kv_cache_cuda.h"
#include "kernels/rope/qk_norm_rope.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

struct QkNormRopeArgs {
  HeadShape heads;
  TensorView q_norm, k_norm;  // [1, D], or data null: no norm
  float eps = 0;
  const float* rope = nullptr;         // device [positions, D]: cosines, then sines, D/2 each
  const int32_t* positions = nullptr;  // device [T]; negative: padding, nothing is done
  const int32_t* slots = nullptr;      // device [T] block * 16 + offset
};

// qkv: [T, (Hq + 2 Hkv) D]; queries are rotated in place, keys and values go to the cache.
void QkNormRopeWriteKv(const TensorView& qkv, const QkNormRopeArgs& args, const KvBlocks& kv,
                       cudaStream_t stream);

// Positions [0, count) of blocks to other blocks of the same cache. copies: device [n].
void CopyKv(const KvCopy* copies, int64_t n, const KvBlocks& kv, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

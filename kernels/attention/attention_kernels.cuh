// What the two tensor-core kernels of attention are given.
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

// The tiles of params.rows; head_dim 64 or 128, a group of at most 8.
void AttentionOfTiles(const AttentionParams& params, int64_t head_dim, KvFormat format,
                      cudaStream_t stream);

}  // namespace orrery::kernels::cuda

// A warp takes one query head of one row through its positions, 32 at a time in ascending order: a
// lane scores one position, then holds every 32nd column of the output.
#include <cmath>

#include "kernels/attention/attention_simple.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;
constexpr int kColumns = kMaxHeadDim / 32;  // of the output, a lane

template <typename T>
struct AttentionParams {
  Matrix<const T> qkv;
  int64_t rows = 0, num_heads = 0, num_kv_heads = 0;
  int d = 0;
  float scale = 0;
  AttentionRows at;
  const T* k = nullptr;
  const T* v = nullptr;
  bool swizzled = false;
  Matrix<T> out;
};

// What a warp carries from one step of 32 positions to the next.
struct OnlineSoftmax {
  float max = -INFINITY, sum = 0;
  float columns[kColumns] = {};
};

template <typename T>
__device__ __forceinline__ float Score(const AttentionParams<T>& p, const float* q, int64_t slot,
                                       int64_t kv_head) {
  float score = 0;
  for (int i = 0; i < p.d; ++i) {
    const T key = p.k[KvIndex(slot, kv_head, i, p.num_kv_heads, p.d, p.swizzled)];
    score = fmaf(q[i], ToFloat(key), score);
  }
  return score * p.scale;
}

// Adds `count` positions, lane j holding the score and slot of the j-th.
template <typename T>
__device__ __forceinline__ void AddPositions(const AttentionParams<T>& p, float score, int64_t slot,
                                             int64_t kv_head, int count, OnlineSoftmax* state) {
  const int lane = threadIdx.x % 32;
  const float max = fmaxf(state->max, WarpMax(score));
  const float keep = expf(state->max - max), weight = expf(score - max);
  state->max = max;
  state->sum = fmaf(state->sum, keep, WarpSum(weight));
#pragma unroll
  for (int c = 0; c < kColumns; ++c) state->columns[c] *= keep;
  const float rounded = RoundTo<T>(weight);
  for (int j = 0; j < count; ++j) {
    const float w = __shfl_sync(~0u, rounded, j);
    const int64_t from = __shfl_sync(~0u, slot, j);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int i = lane + 32 * c;
      if (i >= p.d) continue;
      const T value = p.v[KvIndex(from, kv_head, i, p.num_kv_heads, p.d, p.swizzled)];
      state->columns[c] = fmaf(w, ToFloat(value), state->columns[c]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) AttentionKernel(AttentionParams<T> p) {
  __shared__ float queries[kWarps][kMaxHeadDim];
  LetSuccessorStart();
  WaitForPredecessor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
  const int64_t t = item / p.num_heads, head = item % p.num_heads;
  const int64_t position = t < p.rows ? p.at.positions[t] : -1;
  if (position < 0) return;
  const int64_t kv_head = head / (p.num_heads / p.num_kv_heads);
  const T* from = p.qkv.Row(t) + head * p.d;
  float* q = queries[warp];
  for (int i = lane; i < p.d; i += 32) q[i] = ToFloat(from[i]);
  __syncwarp();
  const int32_t* blocks = p.at.block_tables + p.at.sequence_of[t] * p.at.table_stride;
  OnlineSoftmax state;
  for (int64_t first = 0; first <= position; first += 32) {
    const int64_t j = first + lane;
    const bool seen = j <= position;
    const int64_t slot =
        seen ? int64_t{blocks[j / kBlockTokens]} * kBlockTokens + j % kBlockTokens : 0;
    const float score = seen ? Score(p, q, slot, kv_head) : -INFINITY;
    const int count = static_cast<int>(min(int64_t{32}, position + 1 - first));
    AddPositions(p, score, slot, kv_head, count, &state);
  }
  T* to = p.out.Row(t) + head * p.d;
  for (int c = 0; c < kColumns && lane + 32 * c < p.d; ++c) {
    to[lane + 32 * c] = FromFloat<T>(__fdiv_rn(state.columns[c], state.sum));
  }
}

}  // namespace

void AttentionSimple(const TensorView& qkv, const HeadShape& heads, float scale,
                     const AttentionRows& rows, const KvBlocks& kv, const TensorView& out,
                     cudaStream_t stream) {
  CHECK(qkv.rows == out.rows && qkv.cols >= heads.q_width() && out.cols == heads.q_width());
  CHECK(qkv.dtype == out.dtype && qkv.dtype == kv.dtype);
  CHECK_LE(heads.head_dim, kMaxHeadDim);
  if (out.rows == 0) return;
  ForDType(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    AttentionParams<T> p;
    p.qkv = AsMatrix<const T>(qkv);
    p.rows = out.rows;
    p.num_heads = heads.num_heads;
    p.num_kv_heads = heads.num_kv_heads;
    p.d = static_cast<int>(heads.head_dim);
    p.scale = scale;
    p.at = rows;
    p.k = static_cast<const T*>(kv.k);
    p.v = static_cast<const T*>(kv.v);
    p.swizzled = kv.swizzled();
    p.out = AsMatrix<T>(out);
    Launch(AttentionKernel<T>, static_cast<unsigned>(DivideUp(out.rows * heads.num_heads, kWarps)),
           32 * kWarps, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda

// The order of every sum of attention on tensor cores (attention_cuda.h says which), written once
// for all of its kernels: a step's softmax, and the fold of chunks. What the compiler might
// contract one way here and another way there is spelled out.
#pragma once

#include "kernels/attention/attention_plan.h"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels::cuda {

inline constexpr int kStepBlocks = 4;
inline constexpr int kStepTokens = kStepBlocks * static_cast<int>(kBlockTokens);
inline constexpr int kChunkSteps = static_cast<int>(kChunkTokens) / kStepTokens;

// A query's scores of one step as four neighbouring lanes hold them, which is how both operands of
// mma.m16n8k16 want probabilities: lane t has the keys 8 j + 2 t (value 2 j) and the next (2 j +
// 1). The key of value i, of a step, is StepKey(i, t).
__device__ __forceinline__ int StepKey(int i, int t) { return i / 2 * 8 + 2 * t + i % 2; }

// Softmax state of one query: m, the largest score so far (raw, the same in its four lanes), and l,
// the sum of the probabilities relative to it. Within a chunk l is each lane's own share.
struct SoftmaxState {
  float m = -INFINITY, l = 0;
};

// One step: masked scores (-infinity) become probabilities. Returns the factor of what the query's
// outputs were before. A step without a key leaves all as it is, exactly.
__device__ __forceinline__ float SoftmaxStep(float (&s)[16], float scale_log2,
                                             SoftmaxState* state) {
  float largest = s[0];
#pragma unroll
  for (int i = 1; i < 16; ++i) largest = fmaxf(largest, s[i]);
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const float m = fmaxf(state->m, largest);
  const float base = m == -INFINITY ? 0.0f : __fmul_rn(m, scale_log2);
  const float factor = Exp2(__fsub_rn(__fmul_rn(state->m, scale_log2), base));
#pragma unroll
  for (int i = 0; i < 16; ++i) s[i] = Exp2(__fmaf_rn(s[i], scale_log2, -base));
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] = __fadd_rn(__fadd_rn(s[4 * i], s[4 * i + 1]), __fadd_rn(s[4 * i + 2], s[4 * i + 3]));
  }
  state->l =
      __fmaf_rn(state->l, factor, __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3])));
  state->m = m;
  return factor;
}

// The end of a chunk: all four lanes have its sum.
__device__ __forceinline__ void SumLanes(SoftmaxState* state) {
  state->l = __fadd_rn(state->l, __shfl_xor_sync(0xffffffffu, state->l, 1));
  state->l = __fadd_rn(state->l, __shfl_xor_sync(0xffffffffu, state->l, 2));
}

// Folds a chunk behind what `total` has: each output becomes Folded(total's, chunk's, factors).
struct FoldFactors {
  float total, chunk;
};
__device__ __forceinline__ FoldFactors Fold(const SoftmaxState& chunk, float scale_log2,
                                            SoftmaxState* total) {
  const float m = fmaxf(total->m, chunk.m);
  const float base = m == -INFINITY ? 0.0f : __fmul_rn(m, scale_log2);
  const FoldFactors f{Exp2(__fsub_rn(__fmul_rn(total->m, scale_log2), base)),
                      Exp2(__fsub_rn(__fmul_rn(chunk.m, scale_log2), base))};
  total->l = __fmaf_rn(total->l, f.total, __fmul_rn(chunk.l, f.chunk));
  total->m = m;
  return f;
}
__device__ __forceinline__ float Folded(float total, float chunk, const FoldFactors& f) {
  return __fmaf_rn(total, f.total, __fmul_rn(chunk, f.chunk));
}

}  // namespace orrery::kernels::cuda

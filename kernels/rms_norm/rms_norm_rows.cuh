// The arithmetic of RMSNorm with the addition before it, step by step, for every kernel that takes
// a norm: a thread has whole vectors of 16 bytes of a row, adds up its squares in their order,
// warps add up theirs (WarpSum), and every warp the sums of all warps. Whoever deals vectors to
// threads alike gets the same bits.
#pragma once

#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

// x = round(x + delta) of one vector.
template <typename T>
__device__ __forceinline__ void AddDelta(const float (&delta)[kVectorSize<T>],
                                         float (&x)[kVectorSize<T>]) {
#pragma unroll
  for (int e = 0; e < kVectorSize<T>; ++e) x[e] = RoundTo<T>(x[e] + delta[e]);
}

template <int kN>
__device__ __forceinline__ float AddSquares(const float (&x)[kN], float squares) {
#pragma unroll
  for (int e = 0; e < kN; ++e) squares = fmaf(x[e], x[e], squares);
  return squares;
}

// 1 / root mean square, of the sum of a row's d squares.
__device__ __forceinline__ float InverseRms(float squares, float d, float eps) {
  const float mean = __fdiv_rn(squares, d);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// One vector of the norm.
template <typename T>
__device__ __forceinline__ uint4 NormedVector(const float (&x)[kVectorSize<T>], float inverse,
                                              const uint4& w) {
  float scale[kVectorSize<T>];
  Unpack<T>(w, scale);
#pragma unroll
  for (int e = 0; e < kVectorSize<T>; ++e) scale[e] = scale[e] * RoundTo<T>(x[e] * inverse);
  return Pack<T>(scale);
}

}  // namespace orrery::kernels::cuda

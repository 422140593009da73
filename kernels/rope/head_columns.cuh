// One head of one row in a warp, for norm and rotation and their gradients. Lane l holds columns
// 2 (l + 32 i) and the next one of the first half of the head, and the same of the second half:
// both ends of each rotation.
#pragma once

#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kPairs = kMaxHeadDim / 2 / 2 / 32;  // pairs of columns a lane, in each half

template <typename T>
__device__ __forceinline__ float2 LoadPair(const T* from, int valid, bool paired) {
  if (paired) {
    if (valid <= 0) return {0, 0};
    if constexpr (sizeof(T) == 4) {
      return *reinterpret_cast<const float2*>(from);
    } else {
      return UnpackBf16(*reinterpret_cast<const uint32_t*>(from));
    }
  }
  return {valid > 0 ? ToFloat(from[0]) : 0, valid > 1 ? ToFloat(from[1]) : 0};
}
template <typename T>
__device__ __forceinline__ void StorePair(float2 pair, T* to, int valid, bool paired) {
  if (paired) {
    if (valid <= 0) return;
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float2*>(to) = pair;
    } else {
      *reinterpret_cast<uint32_t*>(to) = PackBf16(pair.x, pair.y);
    }
    return;
  }
  if (valid > 0) to[0] = FromFloat<T>(pair.x);
  if (valid > 1) to[1] = FromFloat<T>(pair.y);
}

// (a, b) -> (a cos - b sin, b cos + a sin), products and sums rounded one by one as on the CPU.
__device__ __forceinline__ void Rotate(float cos, float sin, float* a, float* b) {
  const float first = __fsub_rn(__fmul_rn(*a, cos), __fmul_rn(*b, sin));
  *b = __fadd_rn(__fmul_rn(*b, cos), __fmul_rn(*a, sin));
  *a = first;
}

// The columns of a head that a lane holds.
struct Columns {
  float2 low[kPairs], high[kPairs];
};

template <typename T>
__device__ __forceinline__ Columns LoadColumns(const T* head, int half, int lane, bool paired) {
  Columns u;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    u.low[i] = LoadPair(head + j, half - j, paired);
    u.high[i] = LoadPair(head + half + j, half - j, paired);
  }
  return u;
}

template <typename T>
__device__ __forceinline__ void NormColumns(const Columns& w, float eps, int d, Columns* u) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    squares = fmaf(u->low[i].x, u->low[i].x, squares);
    squares = fmaf(u->low[i].y, u->low[i].y, squares);
    squares = fmaf(u->high[i].x, u->high[i].x, squares);
    squares = fmaf(u->high[i].y, u->high[i].y, squares);
  }
  const float mean = __fdiv_rn(WarpSum(squares), static_cast<float>(d));
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  const auto norm = [&](float weight, float x) {
    return RoundTo<T>(__fmul_rn(weight, RoundTo<T>(__fmul_rn(x, r))));
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    u->low[i] = {norm(w.low[i].x, u->low[i].x), norm(w.low[i].y, u->low[i].y)};
    u->high[i] = {norm(w.high[i].x, u->high[i].x), norm(w.high[i].y, u->high[i].y)};
  }
}

__device__ __forceinline__ void RotateColumns(const float* cos_sin, int half, int lane, bool paired,
                                              Columns* u) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    const float2 cos = LoadPair(cos_sin + j, half - j, paired);
    const float2 sin = LoadPair(cos_sin + half + j, half - j, paired);
    Rotate(cos.x, sin.x, &u->low[i].x, &u->high[i].x);
    Rotate(cos.y, sin.y, &u->low[i].y, &u->high[i].y);
  }
}

// Whether two columns may be read at once.
inline bool PairAligned(const void* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % (2 * SizeOf(dtype)) == 0;
}

}  // namespace orrery::kernels::cuda

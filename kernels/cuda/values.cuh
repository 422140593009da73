// Elements of either dtype in device code: one at a time, and 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/tensor_view.h"

namespace orrery::kernels {

using BFloat16 = __nv_bfloat16;

template <typename T>
inline constexpr int kVectorSize = 16 / sizeof(T);

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(BFloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}
// The value that x has once stored as T.
template <typename T>
__device__ __forceinline__ float RoundTo(float x) {
  return ToFloat(FromFloat<T>(x));
}

template <typename T>
__device__ __forceinline__ void Unpack(const uint4& raw, float (&out)[kVectorSize<T>]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = UnpackBf16(words[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}
template <typename T>
__device__ __forceinline__ uint4 Pack(const float (&in)[kVectorSize<T>]) {
  if constexpr (sizeof(T) == 4) {
    return {__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
            __float_as_uint(in[3])};
  } else {
    return {PackBf16(in[0], in[1]), PackBf16(in[2], in[3]), PackBf16(in[4], in[5]),
            PackBf16(in[6], in[7])};
  }
}

// The first `valid` of a vector's elements, zeros after them. aligned: 16-byte aligned, and valid
// is a whole vector or not positive.
template <typename T>
__device__ __forceinline__ uint4 LoadUpTo(const T* from, int64_t valid, bool aligned) {
  if (aligned) return valid > 0 ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  float values[kVectorSize<T>];
#pragma unroll
  for (int i = 0; i < kVectorSize<T>; ++i) values[i] = i < valid ? ToFloat(from[i]) : 0;
  return Pack<T>(values);
}
template <typename T>
__device__ __forceinline__ void StoreUpTo(const uint4& raw, T* to, int64_t valid, bool aligned) {
  if (aligned) {
    if (valid > 0) *reinterpret_cast<uint4*>(to) = raw;
    return;
  }
  float values[kVectorSize<T>];
  Unpack<T>(raw, values);
#pragma unroll
  for (int i = 0; i < kVectorSize<T>; ++i) {
    if (i < valid) to[i] = FromFloat<T>(values[i]);
  }
}

// Every lane gets the same bits: a sum of two values does not depend on their order.
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ double WarpSum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Larger for a larger value, equal for both zeros; never 0, which is left for what is not there.
// NaN has the smallest key.
__device__ __forceinline__ uint32_t SortKey(float x) {
  if (isnan(x)) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// The value of a key that is not NaN's.
__device__ __forceinline__ float FromSortKey(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A matrix in device memory, as kernels take it.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;
  __device__ __forceinline__ T* Row(int64_t row) const { return data + row * stride; }
};

template <typename T>
Matrix<T> AsMatrix(const TensorView& view) {
  CHECK(view.data == nullptr || SizeOf(view.dtype) == sizeof(T));
  return {static_cast<T*>(view.data), view.row_stride};
}

// Whether every row may be read in whole vectors of 16 bytes.
inline bool VectorAligned(const TensorView& view) {
  const int64_t vector = 16 / SizeOf(view.dtype);
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % vector == 0 &&
         view.cols % vector == 0;
}

// f(T{}) with the type of a dtype.
template <typename F>
void ForDType(DType dtype, const F& f) {
  if (dtype == DType::kFloat32) {
    f(float{});
  } else {
    f(BFloat16{});
  }
}

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace orrery::kernels

// float8_kv.h in device code.
#pragma once

#include <cuda_fp8.h>

#include "kernels/attention/float8_kv.h"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

// k of a row whose largest size this is.
__device__ __forceinline__ int Float8ExponentOf(float largest) {
  const uint32_t bits = __float_as_uint(largest);
  // largest = 1.m 2^e: at most 448 2^k where k = e - 8, or e - 7 where 1.m > 1.75.
  const int e = static_cast<int>(bits >> 23) - 127;
  const int k = e - 8 + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  return largest == 0 ? 0 : min(max(k, kFloat8MinExponent), kFloat8MaxExponent);
}

// Eight values times 2^-k, the first in the lowest byte.
__device__ __forceinline__ uint2 PackFloat8(const float (&x)[8], int k) {
  const float scale = __uint_as_float(static_cast<uint32_t>(127 - k) << 23);
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    uint32_t halves[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = 4 * w + 2 * h;
      halves[h] = __nv_cvt_float2_to_fp8x2(make_float2(x[i] * scale, x[i + 1] * scale),
                                           __NV_SATFINITE, __NV_E4M3);
    }
    words[w] = halves[0] | halves[1] << 16;
  }
  return {words[0], words[1]};
}

// 2^(120 + k) twice, as bfloat16: what UnpackFloat8 multiplies with.
__device__ __forceinline__ __nv_bfloat162 Float8Factor(int k) {
  const uint32_t one = static_cast<uint32_t>(k + 247) << 7;
  const uint32_t two = one | one << 16;
  return *reinterpret_cast<const __nv_bfloat162*>(&two);
}
// Bytes `first` and `first + 1` of a word as two bfloat16. Their exponent and mantissa, put where
// bfloat16 has its own, read as x 2^-120, also where they are subnormal.
template <int first>
__device__ __forceinline__ uint32_t UnpackFloat8Pair(uint32_t word, __nv_bfloat162 factor) {
  const uint32_t high = __byte_perm(word, 0, first == 0 ? 0x1404 : 0x3424);
  const uint32_t raw = (high >> 4 & 0x07f007f0u) | (high & 0x80008000u);
  const __nv_bfloat162 x = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&raw), factor);
  return *reinterpret_cast<const uint32_t*>(&x);
}
// Eight values.
__device__ __forceinline__ uint4 UnpackFloat8(uint32_t low, uint32_t high, __nv_bfloat162 factor) {
  return {UnpackFloat8Pair<0>(low, factor), UnpackFloat8Pair<2>(low, factor),
          UnpackFloat8Pair<0>(high, factor), UnpackFloat8Pair<2>(high, factor)};
}

// A piece of the cache, 16 rows of D bytes and then the rows' exponents, as the piece of bfloat16
// that kernels read (kv_cache_cuda.h), both in shared memory; its panels begin panel_bytes apart.
// By a whole warp.
template <int D>
__device__ __forceinline__ void UnpackPiece(const char* from, char* to, int panel_bytes) {
  constexpr int kChunks = D / 16;  // of 16 bytes, a row
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kChunks / 2; ++i) {
    const int chunk = i * 32 + lane, row = chunk / kChunks, c = chunk % kChunks;
    const uint4 raw = *reinterpret_cast<const uint4*>(from + chunk * 16);
    const __nv_bfloat162 factor = Float8Factor(static_cast<int8_t>(from[16 * D + row]));
    char* out = to + c / 4 * panel_bytes + row * 128;
    const int at = (2 * (c % 4)) ^ (row & 7);
    *reinterpret_cast<uint4*>(out + at * 16) = UnpackFloat8(raw.x, raw.y, factor);
    *reinterpret_cast<uint4*>(out + (at ^ 1) * 16) = UnpackFloat8(raw.z, raw.w, factor);
  }
}

}  // namespace orrery::kernels::cuda

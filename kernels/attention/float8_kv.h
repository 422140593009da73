// Keys and values in eight bits: the cache format of rollout.kv_dtype: float8, for a GPU.
//
// The D values of one position and key-value head share a power of two, 2^k, the smallest with
// which the largest of them is at most 448; each is stored as float8 e4m3 (4 bits of exponent, 3 of
// mantissa) of value / 2^k, rounded to the nearest, ties to even:
//
//   k = ceil(log2(max |x| / 448)), within [-120, 7]     stored = e4m3(x 2^-k)     x' = stored 2^k
//
// x' is exact in bfloat16, so attention over the cache is that over bfloat16 keys and values x',
// bit for bit; its whole error is the rounding, at most 2^-4 of a value, or 2^(k - 10) for small
// ones. Values beyond 57,344 in size are cut off there.
//
// These functions are the definition, on the host; the kernels are tested against them.
#pragma once

#include <cstdint>
#include <span>

namespace orrery::kernels {

inline constexpr int kFloat8MinExponent = -120;
inline constexpr int kFloat8MaxExponent = 7;

// k of a row; 0 for a row of zeros.
int Float8Exponent(std::span<const float> row);
// The e4m3 byte of x 2^-k, and the value of a byte. x finite.
uint8_t ToFloat8(float x, int k);
float FromFloat8(uint8_t byte, int k);

// x' of every value of a row, in place.
void RoundToFloat8(std::span<float> row);

}  // namespace orrery::kernels

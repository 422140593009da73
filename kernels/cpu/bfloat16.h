// bfloat16 on the CPU: the upper half of a float32.
#pragma once

#include <bit>
#include <cstdint>

namespace orrery::kernels {

// Nearest, ties to even; NaN stays NaN.
inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float FromBFloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline float RoundToBFloat16(float value) { return FromBFloat16(ToBFloat16(value)); }

}  // namespace orrery::kernels

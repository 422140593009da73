#include "kernels/attention/float8_kv.h"

#include <algorithm>
#include <cmath>

namespace orrery::kernels {
namespace {

constexpr float kLargest = 448;  // e4m3: 1.75 * 2^8
constexpr int kMantissaBits = 3, kBias = 7;
constexpr int kSmallestExponent = 1 - kBias;  // of a normal number

}  // namespace

int Float8Exponent(std::span<const float> row) {
  float largest = 0;
  for (const float x : row) largest = std::max(largest, std::abs(x));
  if (largest == 0) return 0;
  int exponent = 0;  // largest = fraction 2^exponent, fraction in [1/2, 1)
  const float fraction = std::frexp(largest, &exponent);
  const int k = exponent - (fraction <= 0.875f ? 9 : 8);  // 448 = 0.875 2^9
  return std::clamp(k, kFloat8MinExponent, kFloat8MaxExponent);
}

uint8_t ToFloat8(float x, int k) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double size = std::min<double>(std::ldexp(std::abs(static_cast<double>(x)), -k), kLargest);
  const int exponent =
      size == 0 ? kSmallestExponent : std::max(std::ilogb(size), kSmallestExponent);
  // In units of the last mantissa bit: the nearest whole number, ties to even.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, kMantissaBits - exponent)));
  const int one = 1 << kMantissaBits;
  // A full carry into the next exponent is what adding units to the exponent field gives.
  const int bits = units < one ? units : ((exponent + kBias - 1) << kMantissaBits) + units;
  return sign | static_cast<uint8_t>(bits);
}

float FromFloat8(uint8_t byte, int k) {
  const int field = byte >> kMantissaBits & 15, mantissa = byte & 7;
  const int exponent = std::max(field, 1) - kBias - kMantissaBits;
  const double size = std::ldexp(mantissa + (field > 0 ? 8 : 0), exponent + k);
  return static_cast<float>(byte & 0x80 ? -size : size);
}

void RoundToFloat8(std::span<float> row) {
  const int k = Float8Exponent(row);
  for (float& x : row) x = FromFloat8(ToFloat8(x, k), k);
}

}  // namespace orrery::kernels

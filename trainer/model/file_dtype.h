// Element types of tensors in files, and the conversions between the float formats and float32.
// They are named as safetensors names them. Pure functions; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace orrery::model {

enum class FileDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

// "BF16", as in a safetensors header.
std::string_view FileDtypeName(FileDtype dtype);
std::optional<FileDtype> ParseFileDtype(std::string_view name);
// All names, comma-separated, for error messages.
std::string FileDtypeNames();

// Bytes of one element: 1, 2, 4 or 8.
size_t FileDtypeSize(FileDtype dtype);

// Little-endian loads from any address.
template <typename T>
T LoadLittle(const void* bytes) {
  static_assert(std::endian::native == std::endian::little,
                "files are little-endian, so is the code");
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// bfloat16 is the upper half of a float32.
inline float Bfloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to the nearest, ties to even; NaN stays NaN (made quiet), overflow becomes infinity.
inline uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE 754 binary16, subnormals, infinities and NaN included; exact.
float HalfToFloat(uint16_t bits);

// A name out of a file for an error message: control bytes as \xNN, cut after 120 bytes.
std::string Printable(std::string_view name);

}  // namespace orrery::model

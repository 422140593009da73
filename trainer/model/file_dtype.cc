#include "trainer/model/file_dtype.h"

#include <fmt/format.h>

#include <array>

namespace orrery::model {
namespace {

struct DtypeRow {
  FileDtype dtype;
  std::string_view name;
  size_t size;
};

// In the order of the enum.
constexpr std::array kRows = {
    DtypeRow{FileDtype::kBool, "BOOL", 1},      DtypeRow{FileDtype::kU8, "U8", 1},
    DtypeRow{FileDtype::kI8, "I8", 1},          DtypeRow{FileDtype::kF8E5M2, "F8_E5M2", 1},
    DtypeRow{FileDtype::kF8E4M3, "F8_E4M3", 1}, DtypeRow{FileDtype::kF8E8M0, "F8_E8M0", 1},
    DtypeRow{FileDtype::kI16, "I16", 2},        DtypeRow{FileDtype::kU16, "U16", 2},
    DtypeRow{FileDtype::kF16, "F16", 2},        DtypeRow{FileDtype::kBF16, "BF16", 2},
    DtypeRow{FileDtype::kI32, "I32", 4},        DtypeRow{FileDtype::kU32, "U32", 4},
    DtypeRow{FileDtype::kF32, "F32", 4},        DtypeRow{FileDtype::kF64, "F64", 8},
    DtypeRow{FileDtype::kI64, "I64", 8},        DtypeRow{FileDtype::kU64, "U64", 8},
};

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

}  // namespace

std::string_view FileDtypeName(FileDtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

size_t FileDtypeSize(FileDtype dtype) { return kRows[static_cast<size_t>(dtype)].size; }

std::optional<FileDtype> ParseFileDtype(std::string_view name) {
  for (const DtypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string FileDtypeNames() {
  std::string names;
  for (const DtypeRow& row : kRows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float32
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

std::string Printable(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string text;
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() > kLongest) text += "...";
  return text;
}

}  // namespace orrery::model

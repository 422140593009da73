#include "trainer/model/gguf.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/model/file_dtype.h"
#include "trainer/model/gguf_cursor.h"

namespace orrery::model {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxDims = 4;
constexpr int kMaxArrayDepth = 4;

struct TypeRow {
  GgmlType type;
  std::string_view name;
  uint64_t block_elements;
  uint64_t block_bytes;
};

// Blocks: q8_0 is a half scale and 32 bytes; q4_0 a half scale and 16 bytes; q4_1 a half scale, a
// half minimum and 16 bytes.
constexpr std::array kTypeRows = {
    TypeRow{GgmlType::kF32, "F32", 1, 4},     TypeRow{GgmlType::kF16, "F16", 1, 2},
    TypeRow{GgmlType::kBF16, "BF16", 1, 2},   TypeRow{GgmlType::kQ8_0, "Q8_0", 32, 34},
    TypeRow{GgmlType::kQ4_0, "Q4_0", 32, 18}, TypeRow{GgmlType::kQ4_1, "Q4_1", 32, 20},
};

const TypeRow* FindType(uint32_t number) {
  for (const TypeRow& row : kTypeRows) {
    if (static_cast<uint32_t>(row.type) == number) return &row;
  }
  return nullptr;
}

// Names of the types that exist but are not read here, so that a message can say what the file has.
std::string UnsupportedTypeName(uint32_t number) {
  static constexpr std::array<std::pair<uint32_t, std::string_view>, 24> kNames = {{
      {6, "Q5_0"},    {7, "Q5_1"},     {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},
      {12, "Q4_K"},   {13, "Q5_K"},    {14, "Q6_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
      {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {39, "MXFP4"},
  }};
  for (const auto& [type, name] : kNames) {
    if (type == number) return std::string(name);
  }
  return fmt::format("number {}", number);
}

// Bytes of a scalar value; 0 for strings, arrays and unknown types.
size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

absl::StatusOr<GgufType> ReadType(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const uint32_t number, cursor.Read<uint32_t>("type of a value"));
  if (number > static_cast<uint32_t>(GgufType::kF64)) {
    return cursor.Error(fmt::format("value type {} is unknown (0 to 12 are known)", number));
  }
  return static_cast<GgufType>(number);
}

absl::StatusOr<GgufValue> ReadArray(GgufCursor& cursor, int depth) {
  if (depth > kMaxArrayDepth) return cursor.Error("arrays are nested too deeply");
  GgufValue value;
  value.type = GgufType::kArray;
  ASSIGN_OR_RETURN(value.element_type, ReadType(cursor));
  ASSIGN_OR_RETURN(value.count, cursor.Read<uint64_t>("length of an array"));
  if (const size_t size = ScalarBytes(value.element_type); size > 0) {
    if (value.count > cursor.remaining() / size) {
      return cursor.Error(fmt::format("an array of {} elements does not fit into the {} bytes left",
                                      value.count, cursor.remaining()));
    }
    ASSIGN_OR_RETURN(value.bytes, cursor.Take(value.count * size, "array"));
    return value;
  }
  // Nothing is reserved for a count that may lie: elements that are not there end the loop.
  for (uint64_t i = 0; i < value.count; ++i) {
    if (value.element_type == GgufType::kString) {
      ASSIGN_OR_RETURN(const std::string_view text, cursor.ReadString("string of an array"));
      value.strings.push_back(text);
    } else {
      ASSIGN_OR_RETURN(GgufValue inner, ReadArray(cursor, depth + 1));
      value.arrays.push_back(std::move(inner));
    }
  }
  return value;
}

absl::StatusOr<GgufValue> ReadValue(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const GgufType type, ReadType(cursor));
  if (type == GgufType::kArray) return ReadArray(cursor, 1);
  GgufValue value;
  value.type = type;
  if (type == GgufType::kString) {
    ASSIGN_OR_RETURN(value.bytes, cursor.ReadString("string"));
  } else {
    ASSIGN_OR_RETURN(value.bytes, cursor.Take(ScalarBytes(type), "value"));
  }
  return value;
}

absl::Status ReadKey(GgufCursor& cursor, GgufContent& content) {
  cursor.set_place("a key");
  ASSIGN_OR_RETURN(const std::string_view key, cursor.ReadString("name of a key"));
  cursor.set_place(fmt::format("key '{}'", Printable(key)));
  ASSIGN_OR_RETURN(GgufValue value, ReadValue(cursor));
  if (!content.values.emplace(key, std::move(value)).second) {
    return cursor.Error("stands in the file twice");
  }
  return absl::OkStatus();
}

// A description before the place of the data is known.
struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

absl::Status ReadDims(GgufCursor& cursor, const TypeRow*& type, TensorEntry& entry) {
  ASSIGN_OR_RETURN(const uint32_t num_dims, cursor.Read<uint32_t>("number of dimensions"));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return cursor.Error(fmt::format("has {} dimensions instead of 1 to {}", num_dims, kMaxDims));
  }
  std::vector<uint64_t> dims(num_dims);
  uint64_t elements = 1;
  for (uint64_t& dim : dims) {
    ASSIGN_OR_RETURN(dim, cursor.Read<uint64_t>("dimension"));
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 8) {
      return cursor.Error(fmt::format("dimension {} is 0, or their product overflows", dim));
    }
  }
  entry.tensor.shape.assign(dims.rbegin(), dims.rend());
  ASSIGN_OR_RETURN(const uint32_t number, cursor.Read<uint32_t>("type of a tensor"));
  type = FindType(number);
  if (type == nullptr) {
    return cursor.Error(
        fmt::format("is stored as {}; supported are F32, F16, BF16, Q8_0, Q4_0 and "
                    "Q4_1 (take a file in one of those)",
                    UnsupportedTypeName(number)));
  }
  if (dims[0] % type->block_elements != 0) {
    return cursor.Error(fmt::format("rows of {} elements are no multiple of {}'s block of {}",
                                    dims[0], type->name, type->block_elements));
  }
  entry.tensor.type = type->type;
  entry.bytes = elements / type->block_elements * type->block_bytes;
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadTensorEntry(GgufCursor& cursor) {
  cursor.set_place("a tensor description");
  TensorEntry entry;
  ASSIGN_OR_RETURN(const std::string_view name, cursor.ReadString("name of a tensor"));
  entry.tensor.name = std::string(name);
  cursor.set_place(fmt::format("tensor '{}'", Printable(name)));
  const TypeRow* type = nullptr;
  RETURN_IF_ERROR(ReadDims(cursor, type, entry));
  ASSIGN_OR_RETURN(entry.offset, cursor.Read<uint64_t>("offset of a tensor"));
  return entry;
}

absl::StatusOr<uint64_t> Alignment(const GgufContent& content, GgufCursor& cursor) {
  const auto found = content.values.find("general.alignment");
  if (found == content.values.end()) return kDefaultAlignment;
  cursor.set_place("key 'general.alignment'");
  if (found->second.type != GgufType::kU32) return cursor.Error("is not a u32");
  const uint64_t alignment = LoadLittle<uint32_t>(found->second.bytes.data());
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return cursor.Error(fmt::format("is {}, not a power of two", alignment));
  }
  return alignment;
}

// Gives every tensor its bytes of the data part, which may have gaps but no overlaps.
absl::Status PlaceTensors(std::vector<TensorEntry>& entries, std::string_view data,
                          uint64_t alignment, GgufCursor& cursor) {
  std::vector<const TensorEntry*> order;
  for (TensorEntry& entry : entries) {
    cursor.set_place(fmt::format("tensor '{}'", Printable(entry.tensor.name)));
    if (entry.offset % alignment != 0) {
      return cursor.Error(
          fmt::format("offset {} is no multiple of the alignment {}", entry.offset, alignment));
    }
    if (entry.offset > data.size() || entry.bytes > data.size() - entry.offset) {
      return cursor.Error(
          fmt::format("its {} bytes at {} are not within the {} bytes of data "
                      "(truncated: fetch the file again)",
                      entry.bytes, entry.offset, data.size()));
    }
    entry.tensor.data = std::as_bytes(std::span(data.data() + entry.offset, entry.bytes));
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorEntry& before = *order[i - 1];
    if (order[i]->offset < before.offset + before.bytes) {
      cursor.set_place(fmt::format("tensor '{}'", Printable(order[i]->tensor.name)));
      return cursor.Error(fmt::format("its data at {} overlap those of '{}' at {} to {}",
                                      order[i]->offset, Printable(before.tensor.name),
                                      before.offset, before.offset + before.bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadVersion(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const std::string_view magic, cursor.Take(4, "magic"));
  if (magic != "GGUF") return cursor.Error("does not begin with 'GGUF': not a GGUF file");
  ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>("version"));
  if (version == 2 || version == 3) return version;
  if (version == 0x02000000 || version == 0x03000000) {
    return cursor.Error("is big-endian; only little-endian files are supported (convert it)");
  }
  return cursor.Error(fmt::format("GGUF version {} is not supported; 2 and 3 are", version));
}

}  // namespace

std::string_view GgmlTypeName(GgmlType type) { return FindType(static_cast<uint32_t>(type))->name; }

int64_t GgufTensor::num_rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

absl::StatusOr<GgufContent> ParseGguf(std::string_view file, const std::string& path) {
  GgufCursor cursor(file, path);
  GgufContent content;
  ASSIGN_OR_RETURN(content.version, ReadVersion(cursor));
  ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.Read<uint64_t>("number of tensors"));
  ASSIGN_OR_RETURN(const uint64_t num_keys, cursor.Read<uint64_t>("number of keys"));
  for (uint64_t i = 0; i < num_keys; ++i) RETURN_IF_ERROR(ReadKey(cursor, content));
  std::vector<TensorEntry> entries;
  std::map<std::string_view, bool> seen;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(TensorEntry entry, ReadTensorEntry(cursor));
    entries.push_back(std::move(entry));
  }
  for (const TensorEntry& entry : entries) {
    if (seen.emplace(entry.tensor.name, true).second) continue;
    cursor.set_place(fmt::format("tensor '{}'", Printable(entry.tensor.name)));
    return cursor.Error("stands in the file twice");
  }
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(content, cursor));
  const uint64_t padding = (alignment - cursor.position() % alignment) % alignment;
  const std::string_view data = file.substr(std::min(cursor.position() + padding, file.size()));
  RETURN_IF_ERROR(PlaceTensors(entries, data, alignment, cursor));
  for (TensorEntry& entry : entries) content.tensors.push_back(std::move(entry.tensor));
  return content;
}

namespace {

using Bytes = const std::byte*;

float Half(Bytes bytes) { return HalfToFloat(LoadLittle<uint16_t>(bytes)); }

constexpr size_t kBlock = 32;

// x_i = d q_i with q_i a signed byte.
void DequantizeQ8_0(Bytes block, float* out) {
  const float scale = Half(block);
  for (size_t i = 0; i < kBlock; ++i) {
    out[i] = scale * static_cast<float>(std::to_integer<int8_t>(block[2 + i]));
  }
}

// Byte j holds element j in its lower and element j + 16 in its upper half.
// x_i = d (q_i - 8).
void DequantizeQ4_0(Bytes block, float* out) {
  const float scale = Half(block);
  for (size_t j = 0; j < kBlock / 2; ++j) {
    const int both = std::to_integer<int>(block[2 + j]);
    out[j] = scale * static_cast<float>((both & 15) - 8);
    out[j + kBlock / 2] = scale * static_cast<float>((both >> 4) - 8);
  }
}

// x_i = d q_i + m. The product is exact (11 + 4 bits), so a fused multiply-add changes nothing.
void DequantizeQ4_1(Bytes block, float* out) {
  const float scale = Half(block);
  const float minimum = Half(block + 2);
  for (size_t j = 0; j < kBlock / 2; ++j) {
    const int both = std::to_integer<int>(block[4 + j]);
    out[j] = scale * static_cast<float>(both & 15) + minimum;
    out[j + kBlock / 2] = scale * static_cast<float>(both >> 4) + minimum;
  }
}

}  // namespace

void DequantizeRow(const GgufTensor& tensor, int64_t row, std::span<float> out) {
  CHECK(row >= 0 && row < tensor.num_rows()) << row;
  CHECK_EQ(static_cast<int64_t>(out.size()), tensor.row_size());
  const TypeRow& type = *FindType(static_cast<uint32_t>(tensor.type));
  const size_t num_blocks = out.size() / type.block_elements;
  Bytes block = tensor.data.data() + static_cast<size_t>(row) * num_blocks * type.block_bytes;
  float* to = out.data();
  for (size_t i = 0; i < num_blocks; ++i, block += type.block_bytes, to += type.block_elements) {
    switch (tensor.type) {
      case GgmlType::kF32:
        *to = LoadLittle<float>(block);
        break;
      case GgmlType::kF16:
        *to = Half(block);
        break;
      case GgmlType::kBF16:
        *to = Bfloat16ToFloat(LoadLittle<uint16_t>(block));
        break;
      case GgmlType::kQ8_0:
        DequantizeQ8_0(block, to);
        break;
      case GgmlType::kQ4_0:
        DequantizeQ4_0(block, to);
        break;
      case GgmlType::kQ4_1:
        DequantizeQ4_1(block, to);
        break;
    }
  }
}

}  // namespace orrery::model

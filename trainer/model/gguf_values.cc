// class GgufFile: opening a file, and its keys as values of C++ types.
#include <limits>
#include <optional>

#include "orchestrator/base/status.h"
#include "trainer/model/file_dtype.h"
#include "trainer/model/gguf.h"

namespace orrery::model {
namespace {

std::string TypeName(const GgufValue& value) {
  static constexpr std::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                "i32", "f32", "bool", "string", "array",
                                                "u64", "i64", "f64"};
  if (value.type != GgufType::kArray) return std::string(kNames[static_cast<size_t>(value.type)]);
  return fmt::format("array of {}", kNames[static_cast<size_t>(value.element_type)]);
}

// Nothing where the type is no integer or the value is too large.
std::optional<int64_t> ToInt(GgufType type, const char* bytes) {
  switch (type) {
    case GgufType::kU8:
      return LoadLittle<uint8_t>(bytes);
    case GgufType::kI8:
      return LoadLittle<int8_t>(bytes);
    case GgufType::kU16:
      return LoadLittle<uint16_t>(bytes);
    case GgufType::kI16:
      return LoadLittle<int16_t>(bytes);
    case GgufType::kU32:
      return LoadLittle<uint32_t>(bytes);
    case GgufType::kI32:
      return LoadLittle<int32_t>(bytes);
    case GgufType::kI64:
      return LoadLittle<int64_t>(bytes);
    case GgufType::kU64: {
      const uint64_t value = LoadLittle<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<float> ToFloat(GgufType type, const char* bytes) {
  if (type == GgufType::kF32) return LoadLittle<float>(bytes);
  if (type == GgufType::kF64) return static_cast<float>(LoadLittle<double>(bytes));
  return std::nullopt;
}

// All elements of an array of scalars, or nothing where one does not convert.
template <typename T>
std::optional<std::vector<T>> Elements(const GgufValue& value,
                                       std::optional<T> (*convert)(GgufType, const char*)) {
  const bool scalars =
      value.type == GgufType::kArray && value.strings.empty() && value.arrays.empty();
  if (!scalars) return std::nullopt;
  std::vector<T> elements;
  const size_t size = value.count == 0 ? 0 : value.bytes.size() / value.count;
  for (uint64_t i = 0; i < value.count; ++i) {
    const std::optional<T> element = convert(value.element_type, value.bytes.data() + i * size);
    if (!element) return std::nullopt;
    elements.push_back(*element);
  }
  return elements;
}

}  // namespace

GgufFile::GgufFile(std::string path, std::unique_ptr<MappedFile> file, GgufContent content)
    : path_(std::move(path)), file_(std::move(file)), content_(std::move(content)) {
  for (size_t i = 0; i < content_.tensors.size(); ++i) index_[content_.tensors[i].name] = i;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufContent content, ParseGguf(file->view(), path));
  return std::unique_ptr<GgufFile>(new GgufFile(path, std::move(file), std::move(content)));
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &content_.tensors[found->second];
}

absl::StatusOr<const GgufValue*> GgufFile::Get(std::string_view key) const {
  const auto found = content_.values.find(key);
  if (found == content_.values.end()) return NotFound("{}: has no key '{}'", path_, key);
  return &found->second;
}

absl::Status GgufFile::WrongType(std::string_view key, const GgufValue& value,
                                 std::string_view wanted) const {
  return InvalidInput("{}: key '{}': its type is {}, wanted is {}", path_, key, TypeName(value),
                      wanted);
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  const std::optional<int64_t> integer = ToInt(value->type, value->bytes.data());
  if (!integer) return WrongType(key, *value, "an integer below 2^63");
  return *integer;
}

absl::StatusOr<float> GgufFile::GetFloat(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  const std::optional<float> number = ToFloat(value->type, value->bytes.data());
  if (!number) return WrongType(key, *value, "a float");
  return *number;
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (value->type != GgufType::kBool) return WrongType(key, *value, "bool");
  return value->bytes[0] != 0;
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (value->type != GgufType::kString) return WrongType(key, *value, "string");
  return value->bytes;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  auto elements = Elements<int64_t>(*value, ToInt);
  if (!elements) return WrongType(key, *value, "array of integers");
  return *std::move(elements);
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  auto elements = Elements<float>(*value, ToFloat);
  if (!elements) return WrongType(key, *value, "array of floats");
  return *std::move(elements);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return WrongType(key, *value, "array of strings");
  }
  return value->strings;
}

}  // namespace orrery::model

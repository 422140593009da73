// Reading GGUF files (llama.cpp's model format), versions 2 and 3, little-endian, memory-mapped.
//
// Format (github.com/ggml-org/ggml, docs/gguf.md): "GGUF", u32 version, u64 number of tensors, u64
// number of keys; the keys, each a string, a type and a value; the tensor descriptions (name,
// number of dimensions, dimensions with the fastest first, type, offset); padding to
// general.alignment (32 where absent); the data. A string is a u64 length and its bytes.
//
// Everything is checked at Open: counts and lengths against the file's size, types, offsets,
// overlaps. Errors name file, key or tensor, and values. An opened file is immutable: any thread
// may read. Views and spans live as long as the GgufFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/base/file.h"

namespace orrery::model {

// The numbers are those of the file format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value. Which fields count depends on the type.
struct GgufValue {
  GgufType type = GgufType::kU8;
  std::string_view
      bytes;  // kString: the text; scalars: their bytes; arrays of scalars: all of them
  GgufType element_type = GgufType::kU8;  // kArray
  uint64_t count = 0;                     // kArray: number of elements
  std::vector<std::string_view> strings;  // kArray of kString
  std::vector<GgufValue> arrays;          // kArray of kArray
};

// How the elements of a tensor are stored; the numbers are ggml's. Q*: blocks of 32 along a row.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kBF16 = 30,
};

std::string_view GgmlTypeName(GgmlType type);

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;  // slowest first, as everywhere else: the reverse of the file
  std::span<const std::byte> data;

  int64_t row_size() const { return shape.back(); }
  int64_t num_rows() const;
};

// The keys and tensors of a file, checked against its size.
struct GgufContent {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<GgufTensor> tensors;  // in the order of the file
};

// `file` is a whole file; views and spans point into it. `path` is for messages.
absl::StatusOr<GgufContent> ParseGguf(std::string_view file, const std::string& path);

class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<GgufTensor>& tensors() const { return content_.tensors; }
  const std::map<std::string, GgufValue, std::less<>>& values() const { return content_.values; }
  const GgufTensor* FindTensor(std::string_view name) const;

  bool Has(std::string_view key) const { return content_.values.contains(key); }
  // A missing key or one of another type is an error that names the key; any integer type serves as
  // an integer, any float type as a float.
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<float> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;

 private:
  GgufFile(std::string path, std::unique_ptr<MappedFile> file, GgufContent content);
  absl::StatusOr<const GgufValue*> Get(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const GgufValue& value,
                         std::string_view wanted) const;

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  GgufContent content_;
  std::map<std::string_view, size_t> index_;  // tensor name to position
};

// One row of a tensor (a matrix or a stack of matrices counts its rows through) as float32.
// REQUIRES: 0 <= row < num_rows(), out.size() == row_size().
void DequantizeRow(const GgufTensor& tensor, int64_t row, std::span<float> out);

}  // namespace orrery::model

// Reading safetensors files and the Hugging Face checkpoint folders made of them, memory-mapped: an
// opened checkpoint costs its headers, pages come in on first touch.
//
// Format (github.com/huggingface/safetensors, README "Format"): 8 bytes little-endian length N of
// the header; N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]},
// "__metadata__": {string: string}}; then the data, which the tensors cover without overlap and
// without a hole.
//
// Everything in the header is checked at Open, so that a FileTensor's data always has exactly the
// bytes its shape and dtype say. Errors name file, tensor and values. Opened objects are immutable:
// any thread may read. Spans live as long as the object they came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/base/file.h"
#include "trainer/model/file_dtype.h"

namespace orrery::model {

struct FileTensor {
  FileDtype dtype = FileDtype::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  std::span<const std::byte> data;

  int64_t num_elements() const { return static_cast<int64_t>(data.size() / FileDtypeSize(dtype)); }
};

// "[2, 3]".
std::string ShapeText(std::span<const int64_t> shape);

// Writes the tensor as float32 to `out`, which has num_elements() floats. Takes F32, F16, BF16 and
// F64 (rounded); any other dtype is an error naming it.
absl::Status ToFloat32(const FileTensor& tensor, std::span<float> out);

// The header of a safetensors file, checked against the file's size.
struct SafetensorsHeader {
  std::vector<std::string> names;  // in the order of their data
  std::unordered_map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// `file` is a whole file; the tensors' data point into it. `path` is for messages.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::string_view file, const std::string& path);

// One file.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& names() const { return header_.names; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // nullptr where there is no such tensor.
  const FileTensor* Find(const std::string& name) const;

 private:
  SafetensorsFile(std::string path, std::unique_ptr<MappedFile> file, SafetensorsHeader header)
      : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {}

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  SafetensorsHeader header_;
};

// A folder with model.safetensors, or with model.safetensors.index.json and the shards it names; or
// one .safetensors file by its path.
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Of one file in the order of the data; of shards in alphabetical order.
  const std::vector<std::string>& names() const { return names_; }
  // nullptr where there is no such tensor.
  const FileTensor* Find(const std::string& name) const;
  // As Find, but an error that names the checkpoint and the nearest names it has.
  absl::StatusOr<FileTensor> Get(const std::string& name) const;

 private:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}
  absl::Status AddFile(const std::string& file_path);
  absl::Status AddShards(const std::string& index_path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, const FileTensor*> tensors_;
};

}  // namespace orrery::model

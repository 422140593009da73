#include "trainer/model/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "orchestrator/base/check.h"
#include "orchestrator/base/checksum.h"
#include "orchestrator/base/manifest.h"
#include "orchestrator/base/status.h"
#include "trainer/model/json_writer.h"

namespace orrery::model {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDataAlignment = 64;

// A file under a temporary name, which Commit() syncs and renames and the destructor removes. Where
// the folder keeps a manifest, the checksum goes into it.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path)
      : path_(std::move(path)), temporary_(fmt::format("{}.tmp-{}", path_, ::getpid())) {
    if (KeepsManifest(path_)) checksum_.emplace();
  }
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  absl::Status Create() {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) return ErrnoStatus("cannot create", temporary_, errno);
    return absl::OkStatus();
  }

  absl::Status Append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferBytes) {
      RETURN_IF_ERROR(Flush());
      if (bytes.size() >= kBufferBytes) return Write(bytes);
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }

  absl::Status Commit() {
    RETURN_IF_ERROR(Flush());
    if (::fsync(fd_) != 0) return ErrnoStatus("cannot sync", temporary_, errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus("cannot rename onto", path_, errno);
    }
    ::close(fd_);
    fd_ = -1;
    if (checksum_) {
      RETURN_IF_ERROR(NoteChecksum(path_, checksum_->num_bytes(), checksum_->Value()));
    }
    const std::string folder = fs::path(path_).parent_path().string();
    return SyncPath(folder.empty() ? "." : folder);
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 20;
  static constexpr size_t kStretchBytes = 16 << 20;

  absl::Status Flush() {
    absl::Status status = Write(buffer_);
    buffer_.clear();
    return status;
  }

  // A portion is hashed right before it is written, so that it comes from memory once.
  absl::Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::span<const std::byte> portion = bytes.first(std::min(bytes.size(), kBufferBytes));
      if (checksum_) checksum_->Add(portion);
      RETURN_IF_ERROR(WritePortion(portion));
      bytes = bytes.subspan(portion.size());
      StartDisk();
    }
    return absl::OkStatus();
  }

  absl::Status WritePortion(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus("cannot write", temporary_, errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
      written_ += written;
    }
    return absl::OkStatus();
  }

  // The disk works while the next bytes come, and Commit() waits for the rest alone. Where a file
  // system cannot begin early, nothing is lost.
  void StartDisk() {
    if (written_ - started_ < static_cast<off_t>(kStretchBytes)) return;
    (void)::sync_file_range(fd_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = written_;
  }

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  off_t written_ = 0, started_ = 0;
  std::vector<std::byte> buffer_;
  std::optional<Checksum> checksum_;
};

using Sources = std::vector<const TensorSource*>;

uint64_t NumBytes(const TensorSource& source) {
  uint64_t bytes = FileDtypeSize(source.dtype);
  for (const int64_t size : source.shape) {
    CHECK(size >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
        << source.name << " " << ShapeText(source.shape);
  }
  return bytes;
}

void WriteMap(JsonWriter& json, std::string_view key,
              const std::map<std::string, std::string>& map) {
  json.Object(key);
  for (const auto& [name, value] : map) json.Field(name, value);
  json.EndObject();
}

void WriteEntry(JsonWriter& json, const TensorSource& source, uint64_t begin) {
  json.Object(source.name);
  json.Field("dtype", FileDtypeName(source.dtype));
  json.Array("shape");
  for (const int64_t size : source.shape) json.Value(size);
  json.EndArray();
  json.Array("data_offsets");
  json.Value(begin);
  json.Value(begin + NumBytes(source));
  json.EndArray();
  json.EndObject();
}

// Length and JSON, padded with spaces so that the data are aligned.
std::string HeaderBytes(const Sources& sources,
                        const std::map<std::string, std::string>& metadata) {
  JsonWriter json;
  json.StartObject();
  WriteMap(json, "__metadata__", metadata);
  uint64_t begin = 0;
  for (const TensorSource* source : sources) {
    WriteEntry(json, *source, begin);
    begin += NumBytes(*source);
  }
  json.EndObject();
  std::string text = json.text();
  while ((sizeof(uint64_t) + text.size()) % kDataAlignment != 0) text += ' ';
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + text;
}

absl::Status AppendTensor(const TensorSource& source, const std::string& path,
                          TemporaryFile& file) {
  const uint64_t expected = NumBytes(source);
  uint64_t given = 0;
  const ByteSink sink = [&](std::span<const std::byte> bytes) -> absl::Status {
    given += bytes.size();
    if (given > expected) {
      return Failed("{}: tensor '{}' gave more than its {} bytes", path, source.name, expected);
    }
    return file.Append(bytes);
  };
  RETURN_IF_ERROR(source.write(sink));
  if (given != expected) {
    return Failed("{}: tensor '{}' gave {} of its {} bytes", path, source.name, given, expected);
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, Sources sources,
                       const std::map<std::string, std::string>& metadata) {
  std::stable_sort(sources.begin(), sources.end(), [](const auto* a, const auto* b) {
    return FileDtypeSize(a->dtype) > FileDtypeSize(b->dtype);
  });
  TemporaryFile file(path);
  RETURN_IF_ERROR(file.Create());
  const std::string header = HeaderBytes(sources, metadata);
  RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(header))));
  for (const TensorSource* source : sources) RETURN_IF_ERROR(AppendTensor(*source, path, file));
  return file.Commit();
}

absl::Status CheckNames(std::span<const TensorSource> tensors, const std::string& path) {
  std::set<std::string_view> names;
  for (const TensorSource& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return InvalidInput("{}: tensor name '{}' is given twice or reserved", path, tensor.name);
    }
  }
  return absl::OkStatus();
}

// In the given order, as many as fit into each shard.
std::vector<Sources> PlanShards(std::span<const TensorSource> tensors, uint64_t max_bytes) {
  std::vector<Sources> shards(1);
  uint64_t bytes = 0;
  for (const TensorSource& tensor : tensors) {
    const uint64_t size = NumBytes(tensor);
    if (!shards.back().empty() && bytes + size > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&tensor);
    bytes += size;
  }
  return shards;
}

absl::Status WriteShards(const fs::path& folder, const std::vector<Sources>& shards,
                         const std::map<std::string, std::string>& metadata) {
  std::map<std::string, std::string> weight_map;
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(WriteFile((folder / name).string(), shards[i], metadata));
    for (const TensorSource* source : shards[i]) {
      weight_map[source->name] = name;
      total += NumBytes(*source);
    }
  }
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  json.Object("metadata");
  json.Field("total_size", total);
  json.EndObject();
  WriteMap(json, "weight_map", weight_map);
  json.EndObject();
  return WriteFileAtomically((folder / "model.safetensors.index.json").string(), json.text());
}

}  // namespace

TensorSource FromBytes(std::string name, FileDtype dtype, std::vector<int64_t> shape,
                       std::span<const std::byte> data) {
  return {std::move(name), dtype, std::move(shape),
          [data](const ByteSink& sink) { return sink(data); }};
}

absl::Status WriteSafetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata) {
  RETURN_IF_ERROR(CheckNames(tensors, path));
  Sources sources;
  for (const TensorSource& tensor : tensors) sources.push_back(&tensor);
  return WriteFile(path, std::move(sources), metadata);
}

absl::Status WriteCheckpoint(const std::string& folder, std::span<const TensorSource> tensors,
                             const SafetensorsWriteOptions& options) {
  CHECK_GT(options.max_shard_bytes, 0);
  RETURN_IF_ERROR(CheckNames(tensors, folder));
  RETURN_IF_ERROR(MakeFolders(folder));
  const fs::path root(folder);
  const fs::path single = root / "model.safetensors";
  const fs::path index = root / "model.safetensors.index.json";
  const std::vector<Sources> shards =
      PlanShards(tensors, static_cast<uint64_t>(options.max_shard_bytes));
  std::error_code error;
  if (fs::exists(index, error) || (shards.size() > 1 && fs::exists(single, error))) {
    return Precondition(
        "{}: already holds a checkpoint; write to a new folder, or remove its "
        "model*.safetensors files and {}",
        folder, index.filename().string());
  }
  if (shards.size() == 1) return WriteFile(single.string(), shards[0], options.metadata);
  return WriteShards(root, shards, options.metadata);
}

}  // namespace orrery::model

// Files as the project needs them: whole reads, writes that are there entirely or not at all, and
// memory maps. Every error names the path and the reason the system gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery {

absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes to PATH.tmp-PID, syncs it, renames it over `path` and syncs the folder: after a crash at
// any moment `path` holds the old content or the new one.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

// Makes the folder and its parents; fine where it exists.
absl::Status MakeFolders(const std::string& path);

// fsync of a folder (or file), so that names made in it survive a crash.
absl::Status SyncPath(const std::string& path);

// "No space left on device: cannot write PATH" and so on, from errno.
absl::Status ErrnoStatus(std::string_view what, const std::string& path, int error_number);

// A file mapped read-only for the life of the object. Pages come in on first touch.
class MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

}  // namespace orrery

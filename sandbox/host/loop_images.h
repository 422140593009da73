// File systems of a size in files, for DiskBackend::kLoop: ext4 without a journal, formatted once
// for each pair of limits and copied for each sandbox. A sandbox that fills its own meets ENOSPC,
// by bytes or by inodes, and its files count for the page cache alone and not for its memory.
//
// The files are sparse: together sandboxes may be promised more than the disk has. Admission counts
// what they request (Limits::disk_request_bytes).
//
// Thread-safe. Needs mkfs.ext4 (e2fsprogs).
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

class LoopImages {
 public:
  // `folder`: where templates are kept; exists for as long as this.
  explicit LoopImages(std::string folder) : folder_(std::move(folder)) {}

  // A file system of the limits' size at `path`.
  absl::Status Make(const Limits& limits, const std::string& path);

 private:
  absl::StatusOr<std::string> Template(int64_t bytes, int64_t inodes);

  const std::string folder_;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::string> templates_;
};

}  // namespace orrery::sandbox

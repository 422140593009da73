// One repository's folder in the Hugging Face cache:
//
//   models--ORG--NAME/refs/main                     the commit a name stands for
//   models--ORG--NAME/blobs/HASH                    a file's content, HASH.incomplete while it
//   comes models--ORG--NAME/snapshots/COMMIT/config.json  a relative link to its blob
//   .locks/models--ORG--NAME/HASH.lock              held while HASH is fetched
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/hub/hub.h"

namespace orrery::hub {

bool IsCommit(std::string_view revision);  // 40 hexadecimal digits

class RepoCache {
 public:
  // `repo` is "ORG/NAME".
  RepoCache(const std::string& cache, Kind kind, const std::string& repo);

  const std::string& folder() const { return folder_; }
  // The commit that `revision` is known to stand for.
  std::optional<std::string> Commit(const std::string& revision) const;
  std::string Snapshot(const std::string& commit) const;
  std::string SnapshotFile(const std::string& commit, const std::string& path) const;
  std::string Blob(const std::string& hash) const;
  std::string Lock(const std::string& hash) const;

  absl::Status WriteRef(const std::string& revision, const std::string& commit) const;
  // Makes SnapshotFile(commit, path) a link to the blob, replacing what was there.
  absl::Status Link(const std::string& commit, const std::string& path,
                    const std::string& hash) const;

 private:
  std::string folder_;
  std::string locks_;
};

// Held from Acquire() to the end of its life; waits for another process (or thread) that has it.
// flock(2) on the file, as the Python library does.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Acquire(const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace orrery::hub

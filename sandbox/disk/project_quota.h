// Folders whose bytes and inodes the file system itself limits, by a project of its own each: for
// DiskBackend::kProjectQuota. ext4 and XFS, mounted with prjquota.
//
// A project id is taken from [kFirstProject, kFirstProject + kProjects), which nothing else of a
// machine should use. No two owners get the same, of whatever process, container or state folder:
// the file system counts the folders of a project, and only who sees its own alone keeps the id. A
// folder that is not yet known to be alone is named *.new. So the folders themselves are the
// journal: ReleaseProjects gives back what a dead owner had.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

class ProjectQuota {
 public:
  static constexpr uint32_t kFirstProject = 0x4f000000, kProjects = 1 << 24;

  // Precondition, with the fix, where the file system of the folder limits no projects. `first`:
  // where in the range it begins; owners that begin apart meet seldom.
  static absl::StatusOr<std::unique_ptr<ProjectQuota>> Open(const std::string& folder,
                                                            uint32_t first = RandomFirst());

  // Makes the folder, on the same file system. All that is made in it counts, whoever makes it.
  // EDQUOT (ext4) or ENOSPC (XFS) meets who passes a limit; statfs(2) shows limits and use.
  absl::Status Make(const std::string& path, int64_t bytes, int64_t inodes);
  // Deletes the folder with all that is in it, and gives its project back.
  static absl::Status Remove(const std::string& path);

 private:
  static uint32_t RandomFirst();
  explicit ProjectQuota(uint32_t first) : next_(first) {}
  absl::StatusOr<bool> Claim(const std::string& path, uint32_t project);

  std::atomic<uint32_t> next_;  // ids that follow each other share blocks of the quota file
};

// Gives back the projects of the folders in `folder`, of an owner that is dead; deletes nothing.
void ReleaseProjects(const std::string& folder);

}  // namespace orrery::sandbox

// Removing groups with all that is in them.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/cgroup/files.h"

namespace orrery::sandbox {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience(10);

// rmdir, again while the kernel still takes processes out of it.
absl::Status RemoveFolder(const std::string& folder) {
  const Clock::time_point end = Clock::now() + kPatience;
  std::chrono::microseconds pause(50);
  while (::rmdir(folder.c_str()) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    if (errno != EBUSY || Clock::now() > end) {
      return ErrnoStatus("cannot remove the control group", folder, errno);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
  return absl::OkStatus();
}

absl::Status RemoveBelow(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) RETURN_IF_ERROR(RemoveBelow(entry.path().string()));
  }
  return RemoveFolder(folder);
}

}  // namespace

absl::Status RemoveGroupTree(const Hierarchies& hierarchies, const std::string& name) {
  const std::string unified = hierarchies.unified() + "/" + name;
  // Thawed first only in version 1's sense: what version 2 froze dies of cgroup.kill as it is.
  if (::access(unified.c_str(), F_OK) == 0) {
    RETURN_IF_ERROR(WriteGroupFile(AT_FDCWD, unified + "/cgroup.kill", "1"));
  }
  for (const std::string& place : hierarchies.all()) {
    const std::string folder = place + "/" + name;
    if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) continue;
    RETURN_IF_ERROR(RemoveBelow(folder));
  }
  return absl::OkStatus();
}

}  // namespace orrery::sandbox

#include "sandbox/host/kernel.h"

#include <cstdio>
#include <utility>

#include "orchestrator/base/status.h"

namespace orrery::sandbox {

absl::Status CheckKernel(const std::string& release) {
  constexpr std::pair<int, int> kOldest{6, 15};
  std::pair<int, int> version;
  if (std::sscanf(release.c_str(), "%d.%d", &version.first, &version.second) == 2 &&
      version >= kOldest) {
    return absl::OkStatus();
  }
  return Precondition(
      "this kernel is Linux {}, and sandboxes need {}.{} or newer (overlays of detached mounts): "
      "boot a newer kernel, or use a sandbox-host that has one (--host)",
      release, kOldest.first, kOldest.second);
}

}  // namespace orrery::sandbox

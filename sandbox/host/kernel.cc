#include "sandbox/host/kernel.h"

#include <cstdio>
#include <utility>

#include "orchestrator/base/status.h"

namespace orrery::sandbox {

namespace {

bool IsAtLeast(const std::string& release, std::pair<int, int> oldest) {
  std::pair<int, int> version;
  return std::sscanf(release.c_str(), "%d.%d", &version.first, &version.second) == 2 &&
         version >= oldest;
}

}  // namespace

absl::Status CheckKernel(const std::string& release) {
  if (IsAtLeast(release, {6, 7})) return absl::OkStatus();
  return Precondition(
      "this kernel is Linux {}, and sandboxes need 6.7 or newer (overlays of idmapped layers): "
      "boot a newer kernel, or use a sandbox-host that has one (--host)",
      release);
}

bool HasDetachedMounts(const std::string& release) { return IsAtLeast(release, {6, 15}); }

}  // namespace orrery::sandbox

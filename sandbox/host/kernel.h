// Which kernels can hold sandboxes.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace orrery::sandbox {

// `release` as uname(2) says it. An older kernel is refused before anything is made: overlays of
// detached, idmapped mounts came with Linux 6.15, and there is no other way that leaves no mount
// behind when the launcher dies.
absl::Status CheckKernel(const std::string& release);

}  // namespace orrery::sandbox

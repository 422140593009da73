// Which kernels can hold sandboxes.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace orrery::sandbox {

// `release` as uname(2) says it. A kernel that is older than 6.7 is refused before anything is
// made: tmpfs through id maps came with 6.3, layers of an overlay given one by one with 6.7.
absl::Status CheckKernel(const std::string& release);

// Mounts that hang nowhere can be copied and made overlays of (Linux 6.15); otherwise
// launcher/stage.h.
bool HasDetachedMounts(const std::string& release);

}  // namespace orrery::sandbox

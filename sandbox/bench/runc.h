// The same life by runc: overlay mounted, bundle run, overlay unmounted, files deleted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct RuncLives {
  std::string version;
  std::vector<double> life_ms;
  double cpu_ms = 0;  // of one life, of runc and what it ran
};

// NotFound where there is no runc. `work`: an empty folder.
absl::StatusOr<RuncLives> MeasureRunc(const SandboxOptions& options, const std::string& work,
                                      int lives);

}  // namespace orrery::sandbox

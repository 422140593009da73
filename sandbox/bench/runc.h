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

// The output of one command by runc, in the same sandbox; an error where it ends with another code
// than 0.
absl::StatusOr<std::string> RunByRunc(const SandboxOptions& options, const std::string& work,
                                      const std::vector<std::string>& argv);

}  // namespace orrery::sandbox

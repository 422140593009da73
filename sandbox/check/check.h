// Tries on this host what a hostile program would try: every escape and every way of taking more
// than its share (probe/probe.h). Needs no image: the probe is all there is in the sandbox.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct CheckRow {
  std::string name;
  bool held = false;
  std::string detail;
};

// The rows in the order they were tried. An error where a sandbox cannot be made at all.
absl::StatusOr<std::vector<CheckRow>> RunChecks(SandboxHost* host);

// Parts of it, for the tests. `work`: an empty folder, which becomes the image.
SandboxOptions ProbeOptions(const std::string& work);
absl::StatusOr<std::vector<CheckRow>> CheckEscapes(SandboxHost* host,
                                                   const SandboxOptions& options);
absl::StatusOr<std::vector<CheckRow>> CheckLoads(SandboxHost* host, const SandboxOptions& options);
absl::StatusOr<std::vector<CheckRow>> CheckNeighbours(SandboxHost* host,
                                                      const SandboxOptions& options);
absl::StatusOr<std::vector<CheckRow>> CheckFiles(SandboxHost* host, const SandboxOptions& options);

}  // namespace orrery::sandbox

// A sandbox as an OCI runtime bundle (runtime-spec 1.0.2): config.json beside a prepared root, for
// runc and other runtimes. What it says is what our launcher does, so far as the specification has
// words.
//
// Not in it: idmapped layers (runc 1.1 knows none: the root must already belong to the range of
// ids), user.max_* and devpts limits, and the launcher's ENOSYS for unknown calls beyond clone3.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct BundleOptions {
  SandboxOptions sandbox;
  uint32_t id_base = 0;         // host id of the sandbox's root
  std::string root = "rootfs";  // absolute, or below the bundle
  std::vector<std::string> argv;
  std::string cgroup;  // "/orrery/NAME"
  bool terminal = false;
};

// config.json as text.
std::string MakeBundleConfig(const BundleOptions& options);
// Writes it into `folder`.
absl::Status WriteBundle(const std::string& folder, const BundleOptions& options);

}  // namespace orrery::sandbox

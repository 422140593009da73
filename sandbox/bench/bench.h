// `orrery sandbox bench`: what a sandbox costs on this machine, and what runc's costs in the same
// run. Prints a table; BENCHMARKS.md keeps what it printed where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sandbox/host/local_host.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct BenchOptions {
  HostOptions host;
  PreparedImage image;
  std::vector<int> sandboxes = {64, 256};
  int episodes = 500;
  double resident_gib = 8;
  bool with_runc = true;
};

absl::Status RunBench(const BenchOptions& options);

}  // namespace orrery::sandbox

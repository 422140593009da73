// What is there of hosts besides those that live: for the tests and `sandbox bench`, which must
// find nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/host/local_host.h"

namespace orrery::sandbox {

// One line for each process, control group and folder below the options' names.
absl::StatusOr<std::vector<std::string>> FindLeftovers(const HostOptions& options);

}  // namespace orrery::sandbox

// What a machine does not hold sandboxes to, or holds them to more harshly than their limits say.
#pragma once

#include <string>
#include <vector>

#include "sandbox/cgroup/cgroup.h"
#include "sandbox/host/local_host.h"

namespace orrery::sandbox {

// Limits that cannot be enforced, one line each with the fix. `swaps`: of /proc/swaps.
// REQUIRES: the control group of the options exists.
std::vector<std::string> FindUnenforced(const HostOptions& options, const Hierarchies& hierarchies,
                                        const std::string& swaps);

// What else should be known. `lru`: of /sys/kernel/mm/lru_gen/enabled, empty where there is none.
std::vector<std::string> FindPitfalls(const HostOptions& options, const Hierarchies& hierarchies,
                                      const std::string& lru);

}  // namespace orrery::sandbox

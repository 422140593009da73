#include "sandbox/host/unenforced.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace orrery::sandbox {
namespace {

// A heading, and a line for each.
bool HasSwap(const std::string& swaps) { return std::count(swaps.begin(), swaps.end(), '\n') > 1; }

bool CountsSwap(const HostOptions& options, const Hierarchies& hierarchies) {
  const char* file =
      hierarchies.is_v2("memory") ? "memory.swap.max" : "memory.memsw.limit_in_bytes";
  return ::access((hierarchies.of("memory") + "/" + options.cgroup + "/" + file).c_str(), F_OK) ==
         0;
}

}  // namespace

std::vector<std::string> FindUnenforced(const HostOptions& options, const Hierarchies& hierarchies,
                                        const std::string& swaps) {
  std::vector<std::string> found;
  if (options.disk == DiskBackend::kUnlimited) {
    found.push_back(
        "disk and inodes of sandboxes are not limited (disk back end unlimited): take "
        "project_quota, loop or tmpfs");
  }
  if (HasSwap(swaps) && !CountsSwap(options, hierarchies)) {
    found.push_back(
        "the memory limit does not count swap, and this machine swaps: swapoff -a, or boot with "
        "swapaccount=1");
  }
  return found;
}

std::vector<std::string> FindPitfalls(const HostOptions& options, const Hierarchies& hierarchies,
                                      const std::string& lru) {
  // Bit 0: the multi-generation LRU. Reclaim for a group's limit then wakes nobody to write dirty
  // pages, or too late, and ends with a kill (seen with Linux 6.12).
  const bool multi_generation = (std::strtoul(lru.c_str(), nullptr, 16) & 1) != 0;
  if (!multi_generation || !hierarchies.is_v2("memory") || options.disk == DiskBackend::kTmpfs) {
    return {};
  }
  return {
      "a sandbox that writes more to its disk than its memory limit may be killed for memory: echo "
      "0 > /sys/kernel/mm/lru_gen/enabled"};
}

}  // namespace orrery::sandbox

// User namespaces that hold nothing but an id map, for idmapped mounts. Made on first use of a
// range and kept for the launcher's life, as a range is used again by later sandboxes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <utility>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

// Writes "inside outside kIdCount" as both maps of a process in a new user namespace.
Error WriteIdMaps(pid_t pid, uint32_t inside, uint32_t outside);

class IdMaps {
 public:
  // A namespace in which owner `on_disk` + i is shown as host id `shown` + i.
  Error Get(uint32_t on_disk, uint32_t shown, int& fd);

 private:
  std::map<std::pair<uint32_t, uint32_t>, Descriptor> namespaces_;
};

}  // namespace orrery::sandbox

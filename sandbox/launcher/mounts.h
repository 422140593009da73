// Detached mounts, by the kernel's newer mount calls. All functions return the mount as a
// descriptor; nothing is attached anywhere until Attach.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

using MountOptions = std::vector<std::pair<std::string, std::string>>;

// A new file system of a type ("tmpfs") with options; attributes are MOUNT_ATTR_*.
Error MakeMount(const char* type, const MountOptions& options, unsigned attributes,
                Descriptor& mount);

// A second mount of what `path` below `folder` is ("" with a descriptor: the descriptor's own).
Error CloneMount(int folder, const std::string& path, Descriptor& mount);

// Shows owners through the id map of a user namespace (-1: as they are) and sets attributes.
Error Restrict(int mount, int id_map, unsigned attributes);

// Opens what lies at `path` below `root`, for mounting over. A link on the way is an error: an
// image could lead the mount elsewhere with it.
Error OpenTarget(int root, const std::string& path, Descriptor& target);

Error Attach(int mount, int target, const std::string& where);

}  // namespace orrery::sandbox

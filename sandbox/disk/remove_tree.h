// Deleting a folder with all that is in it, however deep, with two descriptors and no recursion, in
// a tree that nothing else changes. It leaves the folder's file system for no mount and no link.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace orrery::sandbox {

// Fine where there is no such path.
absl::Status RemoveTree(const std::string& path);

}  // namespace orrery::sandbox

// What a freshly unpacked layer needs to know of the layers below it, before it becomes one of
// them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sandbox/image/tree_writer.h"

namespace orrery::sandbox::image {

// Folders that the archive did not name get the attributes of the folder they lie over. Whiteouts
// of nothing go. /proc, /sys and /dev must be folders: a link there could lead a mount elsewhere;
// the lowest layer gets those it lacks. `below` are the trees of the lower layers, lowest first.
absl::Status SettleLayer(int root, const std::vector<std::string>& below, const TreeFacts& facts);

}  // namespace orrery::sandbox::image

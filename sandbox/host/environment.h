// The variables of a command.
#pragma once

#include <string>
#include <vector>

namespace orrery::sandbox {

// "NAME=value" entries; a later one of a name takes the place of an earlier.
std::vector<std::string> MergeEnvironment(const std::vector<std::string>& image,
                                          const std::vector<std::string>& request);

}  // namespace orrery::sandbox

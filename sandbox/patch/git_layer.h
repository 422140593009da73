// This host's git with the libraries it loads, as a layer that is put on top of an image: whatever
// the image's or an episode's files are, this git runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace orrery::sandbox {

// Fills an empty folder. NotFound where the host has no git.
absl::Status MakeGitLayer(const std::string& folder);

// How it is called inside.
std::vector<std::string> TrustedGit();

}  // namespace orrery::sandbox

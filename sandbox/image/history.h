// Git history hygiene: a repository in an image with nothing newer than a base commit.
//
// The repository is hostile. Its object files alone are copied (regular files of the names git
// gives them; no config, hook, alternate, replacement or link), packs are indexed anew, and a
// trusted git works on the copy as nobody, without network, in a mount namespace of its own. What
// comes out is a fresh git folder: one pack of what the base reaches, HEAD and one branch at it,
// the index of its tree. It becomes a layer of its own that hides the old folder; the working tree
// stays as it is.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/image.h"

namespace orrery::sandbox::image {

struct CutRepository {
  std::string folder;  // on the host: the new git folder's content
  std::string prefix;  // in the image: "testbed/.git"
  std::string note;    // "/testbed: history ends at 0123..."
};

// `layers` are the image's trees, lowest first; `scratch` an empty folder that takes the result.
absl::StatusOr<CutRepository> CutHistory(const std::vector<std::string>& layers,
                                         const HistoryCut& cut, const std::string& scratch);

}  // namespace orrery::sandbox::image

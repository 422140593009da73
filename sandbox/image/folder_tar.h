// A folder as a tar stream (pax), in an order and form that depend on the folder alone: names by
// bytes, hard links to the first name, times, owners and harmless attributes as they are. Links are
// not followed, sockets are left out.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/decode.h"

namespace orrery::sandbox::image {

struct FolderTarOptions {
  // Put in front of every path, with entries for its folders left to the layer below: "a/b".
  std::string prefix;
  // Paths below the prefix that get an opaque marker ("" is the folder itself).
  std::vector<std::string> opaque;
};

absl::StatusOr<ByteSource> TarOfFolder(const std::string& folder,
                                       const FolderTarOptions& options = {});

}  // namespace orrery::sandbox::image

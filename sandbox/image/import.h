// What Import() takes, told apart: a path to the image that it holds.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "sandbox/image/install.h"
#include "sandbox/image/store_files.h"

namespace orrery::sandbox::image {

// Archives of images are spread into `staging` first, an empty folder that must stay until the
// image is installed.
absl::StatusOr<NewImage> OpenImageSource(const std::string& path, const ImportOptions& options,
                                         const std::string& staging);

}  // namespace orrery::sandbox::image

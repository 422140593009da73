// Images in files: an OCI image layout (specification 1.1) and what `docker save` writes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/image/file_set.h"
#include "sandbox/image/install.h"

namespace orrery::sandbox::image {

struct LayoutQuery {
  std::string what;          // for messages
  std::string tag;           // which image where there are several; "" takes the only one
  std::string architecture;  // "" is this host's
};

// Chooses between the two by the files that are there.
absl::StatusOr<NewImage> ReadImageFiles(std::shared_ptr<FileSet> files, const LayoutQuery& query);

}  // namespace orrery::sandbox::image

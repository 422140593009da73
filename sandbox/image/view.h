// What an image's layers show together, without mounting them: the topmost entry of a name, none
// below a whiteout or an opaque folder. For looking at a few files of an image.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/tree_writer.h"

namespace orrery::sandbox::image {

class LayerView {
 public:
  // Folders, lowest first.
  explicit LayerView(std::vector<std::string> layers) : layers_(std::move(layers)) {}

  struct Found {
    std::string host_path;
    struct stat status;
  };
  // No link is followed, in the middle neither.
  std::optional<Found> Find(const Components& path) const;
  // Links are followed as the image would, the last one too.
  std::optional<Found> Follow(const std::string& path) const;
  // Names in a folder, sorted; empty where it is none.
  absl::StatusOr<std::vector<std::string>> List(const Components& path) const;
  // Of a regular file; NotFound, or InvalidArgument where it is larger.
  absl::StatusOr<std::string> Read(const Components& path, int64_t max_bytes) const;

 private:
  // What one layer says of a path.
  enum class Answer { kHere, kNothing, kHidden };
  Answer Ask(size_t layer, const Components& path, Found* found) const;

  std::vector<std::string> layers_;
};

}  // namespace orrery::sandbox::image

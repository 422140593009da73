// Folders of an overlay, seen from outside: what a path is, through its layers, with whiteouts
// (character devices 0:0) and opaque folders (trusted.overlay.opaque = "y"). Nothing is followed
// and nothing is mounted; names come from trees that anybody may have written.
#pragma once

#include <sys/stat.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

// One folder in one layer.
struct LayerFolder {
  std::shared_ptr<const Descriptor> folder;
  uint32_t id_shift = 0;  // what to take from owners on disk
  bool upper = false;     // of a sandbox, not of the image
  bool opaque = false;    // hides all below
};

// The same folder in all layers that have a part in it, highest first.
using FolderStack = std::vector<LayerFolder>;

// What a name is in a stack.
struct LayeredEntry {
  bool exists = false;
  struct stat info {};   // owners as the sandbox sees them
  LayerFolder at;        // the folder that it lies in
  FolderStack below;     // of a folder
  bool touched = false;  // an upper layer says something about it
};

LayerFolder MakeLayerFolder(Descriptor folder, uint32_t id_shift, bool upper);

// Looks through the stack, or with `image_only` through the layers of the image alone.
LayeredEntry Look(const FolderStack& stack, const std::string& name, bool image_only);

// Names in a folder of one layer, whiteouts included.
absl::StatusOr<std::set<std::string>> NamesIn(const LayerFolder& folder);

// Extended attributes but those of the overlay (trusted.*) and of this machine's labels.
std::map<std::string, std::string> ExtendedAttributes(const LayerFolder& folder,
                                                      const std::string& name);

absl::StatusOr<Descriptor> OpenRegular(const LayerFolder& folder, const std::string& name);
std::string ReadLink(const LayerFolder& folder, const std::string& name);

}  // namespace orrery::sandbox

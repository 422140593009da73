// Brings an image's layers and record into the store, whatever they come from. Layers are unpacked
// side by side and published lowest first; a layer that the store has is not opened at all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/decode.h"
#include "sandbox/image/image.h"
#include "sandbox/image/manifest.h"
#include "sandbox/image/store_files.h"

namespace orrery::sandbox::image {

struct LayerSource {
  std::string diff_id;      // as the image's config says; "" where nobody says it
  std::string blob_digest;  // of its bytes; "" where nobody says it
  // Any thread, once, and only if the layer is needed.
  std::function<absl::StatusOr<ByteSource>()> open;
  // After the layer stands, or when its bytes are broken.
  std::function<void()> done;
};

struct NewImage {
  std::string what;  // for messages
  std::string id;    // "": made from the config
  std::string name;
  ImageConfig config;
  std::vector<LayerSource> layers;
  std::vector<std::string> notes;
};

// The chain ids of the image's layers, lowest first; each stands in the store then.
// REQUIRES: the caller holds the store's lock, shared, until FinishImage() too.
absl::StatusOr<std::vector<std::string>> InstallLayers(const StoreFiles& files,
                                                       const NewImage& image,
                                                       const ImportOptions& options);

// Writes the record and the name of an image whose layers stand.
absl::StatusOr<ImageRecord> FinishImage(const StoreFiles& files, const NewImage& image,
                                        const std::vector<std::string>& chains);

// The architecture of an image's programs: that of the ELF header of its shell or another usual
// program; "" where there is none.
std::string DetectArchitecture(const std::vector<std::string>& layer_trees);

}  // namespace orrery::sandbox::image

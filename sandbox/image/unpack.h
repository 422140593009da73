// A layer archive to a tree in overlayfs form. The archive is hostile: what it names, links to or
// sets cannot act outside the tree, and what it may cost is bounded.
//
//   reader thread   bytes, decompression, SHA-256 of the stream (its diff id)
//   this thread     libarchive reads the tar (ustar, GNU, pax, sparse), folders, links
//   workers         write files below 1 MiB
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/decode.h"
#include "sandbox/image/image.h"
#include "sandbox/image/tree_writer.h"

namespace orrery::sandbox::image {

struct UnpackOptions {
  UnpackLimits limits;
  bool drop_devices = false;
  bool squash_owners = false;
  int threads = 2;
  std::function<void(int64_t bytes_in)> progress;  // from the reader thread
};

struct LayerFacts {
  std::string diff_id;      // "sha256:..." of the tar stream
  std::string blob_digest;  // of the bytes as they came
  int64_t entries = 0;
  bool padded = false;  // see TarStream::padded()
  TreeFacts tree;
  std::vector<std::string> notes;  // what was left out, one line a kind
};

// `root` is an empty folder.
absl::StatusOr<LayerFacts> UnpackLayer(ByteSource source, int root, const UnpackOptions& options);

}  // namespace orrery::sandbox::image

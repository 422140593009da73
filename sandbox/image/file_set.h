// The files of an image layout, by name: those of a folder, or of a tar that was spread into a
// folder of the store. Links stay inside.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sandbox/image/decode.h"
#include "sandbox/image/tree.h"

namespace orrery::sandbox::image {

class FileSet {
 public:
  virtual ~FileSet() = default;
  virtual bool Has(const std::string& name) const = 0;
  // NotFound where there is none.
  virtual absl::StatusOr<Fd> Open(const std::string& name) const = 0;
};

absl::StatusOr<std::shared_ptr<FileSet>> FilesOfFolder(const std::string& folder);

// Spreads the archive's files into `staging`, an empty folder, under names of its own.
absl::StatusOr<std::shared_ptr<FileSet>> FilesOfTar(ByteSource tar, const std::string& staging,
                                                    const UnpackLimits& limits);

// Whether the tar is an archive of images ("manifest.json", "index.json", "blobs/...") rather than
// a root file system: by its first entries, as far as needed.
absl::StatusOr<bool> IsImageArchive(ByteSource tar, const UnpackLimits& limits);

// A small file as text.
absl::StatusOr<std::string> ReadDocument(const FileSet& files, const std::string& name);

// A whole file as a source that owns it.
absl::StatusOr<ByteSource> OpenSource(const FileSet& files, const std::string& name);

}  // namespace orrery::sandbox::image

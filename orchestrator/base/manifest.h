// checksums.txt of a folder: every file in it with size and checksum, so that a file that was
// damaged, cut, exchanged or lost is told from a good one before it is used.
//
//   # checksum, bytes and name of every file; ...
//   9a0364b9e99bb480 4718840 model.safetensors
//   ...
//   5c3f8d1e60a1b2c3 201 checksums.txt          the last line: of all lines above it
//
// BeginManifest() opens one (an empty .checksums): from then on whoever writes a large file into
// the folder says its checksum with NoteChecksum(), computed on the way to the disk, and
// FinishManifest() reads only the files that nobody noted. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery {

constexpr char kManifestFile[] = "checksums.txt";

struct ManifestEntry {
  std::string name;  // relative to the folder
  uint64_t bytes = 0, checksum = 0;

  bool operator==(const ManifestEntry&) const = default;
};
using Manifest = std::vector<ManifestEntry>;  // sorted by name

absl::Status BeginManifest(const std::string& folder);
// Whether the folder of this file has an open manifest.
bool KeepsManifest(const std::string& file);
// Nothing where it has none. REQUIRES: the file is written and in `folder` itself.
absl::Status NoteChecksum(const std::string& file, uint64_t bytes, uint64_t checksum);
// Every regular file of the folder and below. A file whose size is not as noted is an error.
absl::Status FinishManifest(const std::string& folder);

// Nothing where the folder has no checksums.txt; an error where that is not as it was written.
absl::StatusOr<std::optional<Manifest>> ReadManifest(const std::string& folder);

// Reads the named files whole, with several threads. The error names the first file that is not as
// the manifest says, what was expected and what was found.
absl::Status CheckFiles(const std::string& folder, const Manifest& manifest);

}  // namespace orrery

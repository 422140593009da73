// The JSON documents of an image: index, manifest and config of the OCI image specification 1.1 and
// of Docker's schema 2, which differ in their media types alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/image/image.h"

namespace orrery::sandbox::image {

struct Descriptor {
  std::string media_type, digest;
  int64_t size = 0;
  std::string os, architecture, variant;  // in an index
  std::string name;                       // org.opencontainers.image.ref.name
};

// An index (manifests) or a manifest (config and layers).
struct Manifest {
  bool is_index = false;
  std::vector<Descriptor> manifests;
  Descriptor config;
  std::vector<Descriptor> layers;
};

struct ImageSpec {
  ImageConfig config;
  std::vector<std::string> diff_ids;
};

inline constexpr int64_t kMaxDocumentBytes = 16 << 20;

// What manifests a client takes, as the Accept header's value.
std::string_view ManifestTypes();

absl::StatusOr<Manifest> ParseManifest(std::string_view json, const std::string& what);
absl::StatusOr<ImageSpec> ParseConfig(std::string_view json, const std::string& what);

// The image's config as a canonical document, whose digest is its id where it has none of its own.
std::string WriteConfig(const ImageSpec& spec);

// The one for linux and `architecture`; the error names those there are.
absl::StatusOr<Descriptor> ChooseManifest(const std::vector<Descriptor>& manifests,
                                          const std::string& architecture, const std::string& what);

// "x86_64" and "aarch64" are taken for what OCI calls them.
std::string CanonicalArchitecture(std::string_view name);

// A whole image from its top document, by a function that brings documents and checks their digest.
struct ResolvedManifest {
  ImageSpec spec;
  std::string id;  // the config's digest
  std::vector<Descriptor> layers;
};
using FetchDocument =
    std::function<absl::StatusOr<std::string>(const Descriptor& descriptor, bool is_manifest)>;
absl::StatusOr<ResolvedManifest> ResolveManifest(const Manifest& top,
                                                 const std::string& architecture,
                                                 const FetchDocument& fetch,
                                                 const std::string& what);

}  // namespace orrery::sandbox::image

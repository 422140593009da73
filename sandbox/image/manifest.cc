#include "sandbox/image/manifest.h"

#include <fmt/ranges.h>
#include <sys/utsname.h>

#include <set>

#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/json.h"

namespace orrery::sandbox::image {
namespace {

constexpr int kMaxIndexDepth = 4;

absl::StatusOr<Descriptor> ParseDescriptor(const rapidjson::Value& value, const std::string& what) {
  Descriptor descriptor;
  descriptor.media_type = StringOf(value, "mediaType");
  descriptor.digest = StringOf(value, "digest");
  descriptor.size = NumberOf(value, "size");
  if (!IsDigest(descriptor.digest)) {
    return InvalidInput("{}: '{}' is no digest of the form sha256:...", what, descriptor.digest);
  }
  if (descriptor.size < 0) return InvalidInput("{}: a size of {}", what, descriptor.size);
  if (const rapidjson::Value* platform = Member(value, "platform"); platform != nullptr) {
    descriptor.os = StringOf(*platform, "os");
    descriptor.architecture = CanonicalArchitecture(StringOf(*platform, "architecture"));
    descriptor.variant = StringOf(*platform, "variant");
  }
  if (const rapidjson::Value* annotations = Member(value, "annotations"); annotations != nullptr) {
    descriptor.name = StringOf(*annotations, "org.opencontainers.image.ref.name");
  }
  return descriptor;
}

absl::Status ParseDescriptors(const rapidjson::Value& array, const std::string& what,
                              std::vector<Descriptor>* descriptors) {
  if (!array.IsArray()) return InvalidInput("{}: layers or manifests are no array", what);
  for (const rapidjson::Value& value : array.GetArray()) {
    ASSIGN_OR_RETURN(Descriptor descriptor, ParseDescriptor(value, what));
    descriptors->push_back(std::move(descriptor));
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(const Descriptor& layer, const std::string& what) {
  if (layer.media_type.find("encrypted") == std::string::npos) return absl::OkStatus();
  return absl::UnimplementedError(
      fmt::format("{}: layer {} is encrypted, which is not supported", what, layer.digest));
}

std::string ListPlatforms(const std::vector<Descriptor>& manifests) {
  std::set<std::string> names;
  for (const Descriptor& manifest : manifests) {
    if (!manifest.architecture.empty() && manifest.architecture != "unknown") {
      names.insert(manifest.os + "/" + manifest.architecture);
    }
  }
  return names.empty() ? "none it names" : fmt::format("{}", fmt::join(names, ", "));
}

absl::StatusOr<Manifest> FetchManifest(const Descriptor& descriptor, const FetchDocument& fetch,
                                       const std::string& what) {
  ASSIGN_OR_RETURN(const std::string json, fetch(descriptor, true));
  return ParseManifest(json, what);
}

}  // namespace

std::string_view ManifestTypes() {
  return "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
         "application/vnd.docker.distribution.manifest.list.v2+json, "
         "application/vnd.docker.distribution.manifest.v2+json";
}

absl::StatusOr<Manifest> ParseManifest(std::string_view json, const std::string& what) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJson(json, what));
  if (NumberOf(document, "schemaVersion") == 1) {
    return absl::UnimplementedError(fmt::format(
        "{}: a manifest of Docker's schema 1, abandoned in 2017: push the image again", what));
  }
  Manifest manifest;
  if (const rapidjson::Value* list = Member(document, "manifests"); list != nullptr) {
    manifest.is_index = true;
    RETURN_IF_ERROR(ParseDescriptors(*list, what, &manifest.manifests));
    return manifest;
  }
  const rapidjson::Value* config = Member(document, "config");
  const rapidjson::Value* layers = Member(document, "layers");
  if (config == nullptr || layers == nullptr) {
    return InvalidInput("{}: neither an image index nor an image manifest", what);
  }
  ASSIGN_OR_RETURN(manifest.config, ParseDescriptor(*config, what));
  RETURN_IF_ERROR(ParseDescriptors(*layers, what, &manifest.layers));
  for (const Descriptor& layer : manifest.layers) RETURN_IF_ERROR(CheckLayer(layer, what));
  return manifest;
}

absl::StatusOr<ImageSpec> ParseConfig(std::string_view json, const std::string& what) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJson(json, what));
  ImageSpec spec;
  spec.config.architecture = CanonicalArchitecture(StringOf(document, "architecture"));
  const std::string os = StringOf(document, "os");
  if (!os.empty() && os != "linux") {
    return InvalidInput("{}: an image for {}; only linux images can run", what, os);
  }
  if (const rapidjson::Value* config = Member(document, "config"); config != nullptr) {
    ASSIGN_OR_RETURN(spec.config.env, StringsOf(*config, "Env", what));
    spec.config.user = StringOf(*config, "User");
    spec.config.working_dir = StringOf(*config, "WorkingDir");
  }
  const rapidjson::Value* rootfs = Member(document, "rootfs");
  if (rootfs == nullptr) return InvalidInput("{}: an image config without rootfs", what);
  ASSIGN_OR_RETURN(spec.diff_ids, StringsOf(*rootfs, "diff_ids", what));
  for (const std::string& diff_id : spec.diff_ids) {
    if (!IsDigest(diff_id)) return InvalidInput("{}: diff_id '{}' is no digest", what, diff_id);
  }
  return spec;
}

std::string WriteConfig(const ImageSpec& spec) {
  rapidjson::StringBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteString(&json, "architecture", spec.config.architecture);
  json.Key("config");
  json.StartObject();
  WriteStrings(&json, "Env", spec.config.env);
  WriteString(&json, "User", spec.config.user);
  WriteString(&json, "WorkingDir", spec.config.working_dir);
  json.EndObject();
  WriteString(&json, "os", "linux");
  json.Key("rootfs");
  json.StartObject();
  WriteString(&json, "type", "layers");
  WriteStrings(&json, "diff_ids", spec.diff_ids);
  json.EndObject();
  json.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

absl::StatusOr<Descriptor> ChooseManifest(const std::vector<Descriptor>& manifests,
                                          const std::string& architecture,
                                          const std::string& what) {
  // A list of one that does not say for what is taken; its config says it.
  if (manifests.size() == 1 && manifests[0].architecture.empty()) return manifests[0];
  for (const Descriptor& manifest : manifests) {
    if (manifest.os == "linux" && manifest.architecture == architecture) return manifest;
  }
  return NotFound(
      "{}: there is no image for linux/{}, but for {}; name another architecture "
      "(--arch) and run it with emulate: true, or build the image for {}",
      what, architecture, ListPlatforms(manifests), architecture);
}

std::string CanonicalArchitecture(std::string_view name) {
  if (name == "x86_64" || name == "x86-64") return "amd64";
  if (name == "aarch64") return "arm64";
  return std::string(name);
}

absl::StatusOr<ResolvedManifest> ResolveManifest(const Manifest& top,
                                                 const std::string& architecture,
                                                 const FetchDocument& fetch,
                                                 const std::string& what) {
  Manifest manifest = top;
  for (int depth = 0; manifest.is_index; ++depth) {
    if (depth == kMaxIndexDepth) return InvalidInput("{}: an index of indexes of indexes", what);
    ASSIGN_OR_RETURN(const Descriptor chosen,
                     ChooseManifest(manifest.manifests, architecture, what));
    ASSIGN_OR_RETURN(manifest, FetchManifest(chosen, fetch, what));
  }
  ResolvedManifest resolved;
  ASSIGN_OR_RETURN(const std::string config, fetch(manifest.config, false));
  ASSIGN_OR_RETURN(resolved.spec, ParseConfig(config, what));
  resolved.id = manifest.config.digest;
  resolved.layers = std::move(manifest.layers);
  if (resolved.layers.size() != resolved.spec.diff_ids.size()) {
    return InvalidInput("{}: {} layers, but the config names {}", what, resolved.layers.size(),
                        resolved.spec.diff_ids.size());
  }
  return resolved;
}

}  // namespace orrery::sandbox::image

namespace orrery::sandbox {

std::string HostArchitecture() {
  struct utsname name;
  if (::uname(&name) != 0) return "unknown";
  return image::CanonicalArchitecture(name.machine);
}

}  // namespace orrery::sandbox

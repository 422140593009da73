#include "sandbox/image/layout.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/json.h"
#include "sandbox/image/reference.h"

namespace orrery::sandbox::image {
namespace {

std::string BlobName(const std::string& digest) { return "blobs/sha256/" + HexOf(digest); }

absl::StatusOr<std::string> ReadChecked(const FileSet& files, const Descriptor& descriptor,
                                        const std::string& what) {
  ASSIGN_OR_RETURN(std::string text, ReadDocument(files, BlobName(descriptor.digest)));
  if (const std::string digest = DigestOf(text); digest != descriptor.digest) {
    return absl::DataLossError(fmt::format("{}: a document has the digest {} instead of {}", what,
                                           digest, descriptor.digest));
  }
  return text;
}

// The manifests of index.json that carry the tag, or all where none is wanted. Several without a
// platform are several images.
absl::StatusOr<std::vector<Descriptor>> ChooseByTag(const std::vector<Descriptor>& manifests,
                                                    const LayoutQuery& query) {
  std::vector<Descriptor> chosen;
  std::vector<std::string> names;
  for (const Descriptor& manifest : manifests) {
    names.push_back(manifest.name);
    if (query.tag.empty() || manifest.name == query.tag) chosen.push_back(manifest);
  }
  const bool ambiguous =
      chosen.size() > 1 && std::any_of(chosen.begin(), chosen.end(),
                                       [](const Descriptor& d) { return d.architecture.empty(); });
  if (chosen.empty() || ambiguous) {
    return InvalidInput("{}: the layout has the images [{}]; name one as PATH:TAG", query.what,
                        fmt::join(names, ", "));
  }
  return chosen;
}

// Most tools write only a tag there, which says little in a store.
std::string NameInLayout(const std::string& name, const std::string& path) {
  if (name.find_first_of(":/") != std::string::npos) return name;
  const std::string base = NameOfFile(path);
  return name.empty() || !ParseReference(base + ":" + name).ok() ? base : base + ":" + name;
}

absl::StatusOr<NewImage> ReadLayout(std::shared_ptr<FileSet> files, const LayoutQuery& query) {
  ASSIGN_OR_RETURN(const std::string json, ReadDocument(*files, "index.json"));
  ASSIGN_OR_RETURN(Manifest index, ParseManifest(json, query.what + ": index.json"));
  if (index.is_index) {
    ASSIGN_OR_RETURN(index.manifests, ChooseByTag(index.manifests, query));
  }
  const auto fetch = [&](const Descriptor& descriptor, bool) {
    return ReadChecked(*files, descriptor, query.what);
  };
  ASSIGN_OR_RETURN(
      const ResolvedManifest manifest,
      ResolveManifest(index, query.architecture.empty() ? HostArchitecture() : query.architecture,
                      fetch, query.what));
  NewImage image;
  image.what = query.what;
  image.id = manifest.id;
  image.config = manifest.spec.config;
  if (index.is_index && !index.manifests.empty()) {
    image.name = NameInLayout(index.manifests[0].name, query.what);
  }
  for (size_t i = 0; i < manifest.layers.size(); ++i) {
    const std::string digest = manifest.layers[i].digest;
    image.layers.push_back(
        {.diff_id = manifest.spec.diff_ids[i], .blob_digest = digest, .open = [files, digest] {
           return OpenSource(*files, BlobName(digest));
         }});
  }
  return image;
}

struct SavedImage {
  std::string config;
  std::vector<std::string> tags, layers;
};

absl::StatusOr<std::vector<SavedImage>> ParseSaved(const std::string& json,
                                                   const std::string& what) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJson(json, what, /*array=*/true));
  std::vector<SavedImage> images;
  for (const rapidjson::Value& value : document.GetArray()) {
    SavedImage image;
    image.config = StringOf(value, "Config");
    ASSIGN_OR_RETURN(image.tags, StringsOf(value, "RepoTags", what));
    ASSIGN_OR_RETURN(image.layers, StringsOf(value, "Layers", what));
    images.push_back(std::move(image));
  }
  if (images.empty()) return InvalidInput("{}: the archive has no image", what);
  return images;
}

absl::StatusOr<SavedImage> ChooseSaved(std::vector<SavedImage> images, const LayoutQuery& query) {
  if (query.tag.empty() && images.size() == 1) return std::move(images[0]);
  std::vector<std::string> tags;
  for (const SavedImage& image : images) {
    for (const std::string& tag : image.tags) {
      if (!query.tag.empty() && LocalName(tag) == LocalName(query.tag)) return image;
      tags.push_back(tag);
    }
  }
  return InvalidInput("{}: the archive has the images [{}]; name one as PATH:TAG", query.what,
                      fmt::join(tags, ", "));
}

// A docker archive names layers by paths; their digests are those of the config alone.
absl::StatusOr<NewImage> ReadSaved(std::shared_ptr<FileSet> files, const LayoutQuery& query) {
  const std::string what = query.what + ": manifest.json";
  ASSIGN_OR_RETURN(const std::string json, ReadDocument(*files, "manifest.json"));
  ASSIGN_OR_RETURN(std::vector<SavedImage> images, ParseSaved(json, what));
  ASSIGN_OR_RETURN(const SavedImage saved, ChooseSaved(std::move(images), query));
  ASSIGN_OR_RETURN(const std::string config, ReadDocument(*files, saved.config));
  ASSIGN_OR_RETURN(const ImageSpec spec, ParseConfig(config, query.what));
  if (spec.diff_ids.size() != saved.layers.size()) {
    return InvalidInput("{}: {} layers, but the config names {}", query.what, saved.layers.size(),
                        spec.diff_ids.size());
  }
  NewImage image;
  image.what = query.what;
  image.id = DigestOf(config);
  image.config = spec.config;
  if (!saved.tags.empty()) image.name = saved.tags[0];
  for (size_t i = 0; i < saved.layers.size(); ++i) {
    const std::string path = saved.layers[i];
    image.layers.push_back({.diff_id = spec.diff_ids[i], .blob_digest = "", .open = [files, path] {
                              return OpenSource(*files, path);
                            }});
  }
  return image;
}

}  // namespace

absl::StatusOr<NewImage> ReadImageFiles(std::shared_ptr<FileSet> files, const LayoutQuery& query) {
  if (files->Has("index.json")) return ReadLayout(std::move(files), query);
  if (files->Has("manifest.json")) return ReadSaved(std::move(files), query);
  return InvalidInput("{}: neither an OCI layout (index.json) nor a docker archive (manifest.json)",
                      query.what);
}

}  // namespace orrery::sandbox::image

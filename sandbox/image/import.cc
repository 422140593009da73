#include "sandbox/image/import.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/folder_tar.h"
#include "sandbox/image/layout.h"
#include "sandbox/image/reference.h"

namespace orrery::sandbox::image {
namespace {

absl::StatusOr<ByteSource> OpenTar(const std::string& path) {
  auto file = std::make_shared<Fd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file->ok()) return ErrnoStatus("cannot open", path, errno);
  ByteSource source = ReadFrom(file->get(), path);
  return ByteSource([file, source = std::move(source)] { return source(); });
}

// One layer of which nobody has said a digest.
NewImage RootFileSystem(const std::string& path, const ImportOptions& options,
                        std::function<absl::StatusOr<ByteSource>()> open) {
  NewImage image;
  image.what = path;
  image.name = NameOfFile(path);
  image.config = options.config;
  if (!options.architecture.empty()) {
    image.config.architecture = CanonicalArchitecture(options.architecture);
  }
  image.layers.push_back({.open = std::move(open)});
  return image;
}

// "PATH" or "PATH:TAG".
struct Location {
  std::string path, tag;
  struct stat status = {};
};

absl::StatusOr<Location> Locate(const std::string& text) {
  Location location{text};
  if (::stat(text.c_str(), &location.status) == 0) return location;
  const int error_number = errno;
  // The tag of a docker archive has a colon of its own.
  for (size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1)) {
    location.path = text.substr(0, colon);
    location.tag = text.substr(colon + 1);
    if (::stat(location.path.c_str(), &location.status) == 0) return location;
  }
  return ErrnoStatus("cannot import", text, error_number);
}

absl::StatusOr<NewImage> OpenFolderSource(const Location& location, const ImportOptions& options,
                                          const LayoutQuery& query) {
  ASSIGN_OR_RETURN(std::shared_ptr<FileSet> files, FilesOfFolder(location.path));
  const bool layout = files->Has("oci-layout") || (files->Has("index.json") && files->Has("blobs"));
  // A root file system could have a file manifest.json, but not without /usr or /bin.
  const bool saved = files->Has("manifest.json") && !files->Has("usr") && !files->Has("bin");
  if (layout || saved) return ReadImageFiles(std::move(files), query);
  return RootFileSystem(location.path, options,
                        [path = location.path] { return TarOfFolder(path); });
}

}  // namespace

absl::StatusOr<NewImage> OpenImageSource(const std::string& path, const ImportOptions& options,
                                         const std::string& staging) {
  ASSIGN_OR_RETURN(const Location location, Locate(path));
  const LayoutQuery query{.what = location.path,
                          .tag = location.tag,
                          .architecture = CanonicalArchitecture(options.architecture)};
  if (S_ISDIR(location.status.st_mode)) return OpenFolderSource(location, options, query);
  if (!S_ISREG(location.status.st_mode)) {
    return InvalidInput("{}: neither a file nor a folder", location.path);
  }
  ASSIGN_OR_RETURN(ByteSource probe, OpenTar(location.path));
  const absl::StatusOr<bool> is_archive = IsImageArchive(std::move(probe), options.limits);
  if (!is_archive.ok()) return Annotate(is_archive.status(), location.path);
  if (!*is_archive) {
    return RootFileSystem(location.path, options, [path = location.path] { return OpenTar(path); });
  }
  ASSIGN_OR_RETURN(ByteSource tar, OpenTar(location.path));
  absl::StatusOr<std::shared_ptr<FileSet>> files =
      FilesOfTar(std::move(tar), staging, options.limits);
  if (!files.ok()) return Annotate(files.status(), location.path);
  return ReadImageFiles(*std::move(files), query);
}

}  // namespace orrery::sandbox::image

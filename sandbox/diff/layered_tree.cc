#include "sandbox/diff/layered_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool IsWhiteout(const struct stat& info) { return S_ISCHR(info.st_mode) && info.st_rdev == 0; }

bool IsOpaque(int folder) {
  char value = 0;
  return ::fgetxattr(folder, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y';
}

// A path to an entry for calls that know no descriptors; the folder is open, so that nothing but
// its last part is looked up.
std::string PathOf(const LayerFolder& folder, const std::string& name) {
  return fmt::format("/proc/self/fd/{}/{}", folder.folder->get(), name);
}

}  // namespace

LayerFolder MakeLayerFolder(Descriptor folder, uint32_t id_shift, bool upper) {
  const bool opaque = IsOpaque(folder.get());
  return {std::make_shared<const Descriptor>(std::move(folder)), id_shift, upper, opaque};
}

LayeredEntry Look(const FolderStack& stack, const std::string& name, bool image_only) {
  LayeredEntry entry;
  for (const LayerFolder& layer : stack) {
    if (image_only && layer.upper) continue;
    struct stat info {};
    if (::fstatat(layer.folder->get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      entry.touched = entry.touched || layer.upper;
      if (IsWhiteout(info)) break;
      const bool folder = S_ISDIR(info.st_mode);
      if (!entry.exists) {
        entry.exists = true;
        info.st_uid -= layer.id_shift;
        info.st_gid -= layer.id_shift;
        entry.info = info;
        entry.at = layer;
      }
      if (!folder) break;
      Descriptor below(::openat(layer.folder->get(), name.c_str(), kOpenFolder));
      if (!below.valid()) break;
      entry.below.push_back(MakeLayerFolder(std::move(below), layer.id_shift, layer.upper));
      if (entry.below.back().opaque) break;
    }
    if (layer.opaque) break;
  }
  // A file above a folder of the same name hides it.
  if (entry.exists && !S_ISDIR(entry.info.st_mode)) entry.below.clear();
  return entry;
}

absl::StatusOr<std::set<std::string>> NamesIn(const LayerFolder& folder) {
  const int copy = ::openat(folder.folder->get(), ".", kOpenFolder);
  DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
  if (stream == nullptr) return ErrnoStatus("cannot read", "a folder of a layer", errno);
  std::set<std::string> names;
  while (const dirent* item = ::readdir(stream)) names.insert(item->d_name);
  ::closedir(stream);
  names.erase(".");
  names.erase("..");
  return names;
}

std::map<std::string, std::string> ExtendedAttributes(const LayerFolder& folder,
                                                      const std::string& name) {
  const std::string path = PathOf(folder, name);
  std::string list(64 << 10, '\0');
  const ssize_t size = ::llistxattr(path.c_str(), list.data(), list.size());
  std::map<std::string, std::string> found;
  for (ssize_t at = 0; at < size;) {
    const std::string key(list.c_str() + at);
    at += static_cast<ssize_t>(key.size()) + 1;
    if (!key.starts_with("user.") && key != "security.capability") continue;
    std::string value(64 << 10, '\0');
    const ssize_t n = ::lgetxattr(path.c_str(), key.c_str(), value.data(), value.size());
    if (n >= 0) found[key] = value.substr(0, static_cast<size_t>(n));
  }
  return found;
}

absl::StatusOr<Descriptor> OpenRegular(const LayerFolder& folder, const std::string& name) {
  Descriptor file(::openat(folder.folder->get(), name.c_str(),
                           O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return ErrnoStatus("cannot open", name, errno);
  }
  return file;
}

std::string ReadLink(const LayerFolder& folder, const std::string& name) {
  char target[PATH_MAX];
  const ssize_t n = ::readlinkat(folder.folder->get(), name.c_str(), target, sizeof(target));
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : std::string();
}

}  // namespace orrery::sandbox

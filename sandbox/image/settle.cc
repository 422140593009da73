#include "sandbox/image/settle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/view.h"

namespace orrery::sandbox::image {
namespace {

// Where every sandbox mounts something of its own.
constexpr const char* kMountTargets[] = {"proc", "sys", "dev"};

absl::Status SetTimes(int fd, const timespec& mtime, const std::string& path) {
  const timespec times[2] = {mtime, mtime};
  if (::futimens(fd, times) != 0) return ErrnoStatus("cannot set the time of", path, errno);
  return absl::OkStatus();
}

absl::Status CopyAttributes(int folder, const LayerView::Found& from, const std::string& path) {
  if (::fchown(folder, from.status.st_uid, from.status.st_gid) != 0 ||
      ::fchmod(folder, from.status.st_mode & 07777) != 0) {
    return ErrnoStatus("cannot set owner and mode of", path, errno);
  }
  ASSIGN_OR_RETURN(const std::vector<Xattr> xattrs, ReadXattrs(from.host_path));
  for (const Xattr& xattr : xattrs) {
    if (xattr.name == kOpaqueXattr) continue;
    if (::fsetxattr(folder, xattr.name.c_str(), xattr.value.data(), xattr.value.size(), 0) != 0) {
      return ErrnoStatus(fmt::format("cannot set attribute {} of", xattr.name), path, errno);
    }
  }
  return SetTimes(folder, from.status.st_mtim, path);
}

absl::Status InheritAttributes(int root, const LayerView& below, const std::string& path) {
  ASSIGN_OR_RETURN(const Components components, SplitPath(path));
  const auto from = below.Find(components);
  if (!from.has_value() || !S_ISDIR(from->status.st_mode)) return absl::OkStatus();
  const Fd folder(OpenInRoot(root, path.empty() ? "." : path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (!folder.ok()) return ErrnoStatus("cannot open", path, errno);
  return CopyAttributes(folder.get(), *from, path);
}

bool LiesBelowOpaque(const Components& path, const std::set<std::string>& opaque) {
  for (size_t count = 0; count < path.size(); ++count) {
    if (opaque.contains(JoinPath(path, count))) return true;
  }
  return false;
}

// The folder's time stays what the image says.
absl::Status RemoveWhiteout(int root, const Components& path) {
  const std::string parent = path.size() == 1 ? "." : JoinPath(path, path.size() - 1);
  const Fd folder(OpenInRoot(root, parent, O_RDONLY | O_DIRECTORY));
  struct stat status;
  if (!folder.ok() || ::fstat(folder.get(), &status) != 0) {
    return ErrnoStatus("cannot open", parent, errno);
  }
  if (::unlinkat(folder.get(), path.back().c_str(), 0) != 0) {
    return ErrnoStatus("cannot remove", path.back(), errno);
  }
  return SetTimes(folder.get(), status.st_mtim, parent);
}

absl::Status RemoveVainWhiteouts(int root, const LayerView& below, const TreeFacts& facts) {
  for (const std::string& whiteout : facts.whiteouts) {
    ASSIGN_OR_RETURN(const Components path, SplitPath(whiteout));
    if (LiesBelowOpaque(path, facts.opaque) || !below.Find(path).has_value()) {
      RETURN_IF_ERROR(RemoveWhiteout(root, path));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMountTargets(int root, bool lowest) {
  struct stat before;
  if (::fstat(root, &before) != 0) return ErrnoStatus("cannot stat", "/", errno);
  for (const char* name : kMountTargets) {
    struct stat status;
    if (::fstatat(root, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (lowest && ::mkdirat(root, name, 0755) != 0)
        return ErrnoStatus("cannot make", name, errno);
      if (lowest) {
        const timespec times[2] = {};
        ::utimensat(root, name, times, AT_SYMLINK_NOFOLLOW);
      }
      continue;
    }
    if (S_ISDIR(status.st_mode)) continue;
    return InvalidInput(
        "/{} is {}, where a sandbox mounts its own: the image is refused, since "
        "a mount there could land elsewhere; make it a folder",
        name,
        S_ISLNK(status.st_mode) ? "a symbolic link"
        : IsWhiteout(status)    ? "removed"
                                : "no folder");
  }
  return SetTimes(root, before.st_mtim, "/");
}

}  // namespace

absl::Status SettleLayer(int root, const std::vector<std::string>& below, const TreeFacts& facts) {
  const LayerView view(below);
  RETURN_IF_ERROR(RemoveVainWhiteouts(root, view, facts));
  RETURN_IF_ERROR(CheckMountTargets(root, below.empty()));
  for (const std::string& path : facts.implicit) {
    RETURN_IF_ERROR(InheritAttributes(root, view, path));
  }
  return absl::OkStatus();
}

}  // namespace orrery::sandbox::image

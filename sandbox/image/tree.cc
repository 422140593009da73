#include "sandbox/image/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox::image {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

bool IsDots(const char* name) {
  return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0;
}

// Removes the files of a folder and returns the names of the folders that are left.
absl::StatusOr<std::vector<std::string>> RemoveFiles(int fd) {
  const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return ErrnoStatus("cannot open", FdPath(fd), errno);
  const Dir dir(::fdopendir(copy));
  std::vector<std::string> folders;
  errno = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (!IsDots(name.c_str()) && ::unlinkat(fd, name.c_str(), 0) != 0) {
      // unlink(2) of a folder is EISDIR in Linux, EPERM in POSIX.
      if (errno == EISDIR || errno == EPERM) {
        folders.push_back(name);
      } else if (errno != ENOENT) {
        return ErrnoStatus("cannot remove", FdPath(fd, name), errno);
      }
    }
    errno = 0;
  }
  if (errno != 0) return ErrnoStatus("cannot list", FdPath(fd), errno);
  return folders;
}

absl::Status RemoveFolder(int parent, const std::string& name) {
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  return ErrnoStatus("cannot remove", FdPath(parent, name), errno);
}

absl::Status Step(Fd* folder, const std::string& name) {
  Fd next(::openat(folder->get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!next.ok()) return ErrnoStatus("cannot open", FdPath(folder->get(), name), errno);
  *folder = std::move(next);
  return absl::OkStatus();
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

int OpenInRoot(int root, const std::string& path, int flags, mode_t mode) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.mode = mode;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  while (true) {
    const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) return static_cast<int>(fd);
  }
}

// Down by names and up by "..", with the names yet to be removed on each level.
absl::Status RemoveTree(int parent, const std::string& name) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  if (errno != EISDIR && errno != EPERM) {
    return ErrnoStatus("cannot remove", FdPath(parent, name), errno);
  }
  Fd folder(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.ok()) return ErrnoStatus("cannot open", FdPath(parent, name), errno);
  std::vector<std::vector<std::string>> left(1);
  ASSIGN_OR_RETURN(left.back(), RemoveFiles(folder.get()));
  while (true) {
    if (!left.back().empty()) {
      RETURN_IF_ERROR(Step(&folder, left.back().back()));
      ASSIGN_OR_RETURN(std::vector<std::string> below, RemoveFiles(folder.get()));
      left.push_back(std::move(below));
      continue;
    }
    left.pop_back();
    if (left.empty()) return RemoveFolder(parent, name);
    RETURN_IF_ERROR(Step(&folder, ".."));
    RETURN_IF_ERROR(RemoveFolder(folder.get(), left.back().back()));
    left.back().pop_back();
  }
}

absl::Status RemoveTree(const std::string& path) { return RemoveTree(AT_FDCWD, path); }

absl::StatusOr<Fd> OpenFolder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus("cannot open", path, errno);
  return fd;
}

absl::StatusOr<std::vector<std::string>> ListFolder(int fd) {
  const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return ErrnoStatus("cannot open", FdPath(fd), errno);
  const Dir dir(::fdopendir(copy));
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    if (!IsDots(entry->d_name)) names.emplace_back(entry->d_name);
  }
  if (errno != 0) return ErrnoStatus("cannot list", FdPath(fd), errno);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<Xattr>> ReadXattrs(const std::string& path) {
  const ssize_t size = ::llistxattr(path.c_str(), nullptr, 0);
  if (size == 0 || (size < 0 && (errno == ENOTSUP || errno == EPERM))) return std::vector<Xattr>();
  if (size < 0) return ErrnoStatus("cannot list the attributes of", path, errno);
  std::string names(static_cast<size_t>(size), '\0');
  if (::llistxattr(path.c_str(), names.data(), names.size()) != size) {
    return ErrnoStatus("cannot list the attributes of", path, errno);
  }
  std::vector<Xattr> xattrs;
  for (size_t begin = 0; begin < names.size();) {
    const std::string name(names.c_str() + begin);
    begin += name.size() + 1;
    const ssize_t length = ::lgetxattr(path.c_str(), name.c_str(), nullptr, 0);
    std::string value(length > 0 ? static_cast<size_t>(length) : 0, '\0');
    if (length < 0 ||
        ::lgetxattr(path.c_str(), name.c_str(), value.data(), value.size()) != length) {
      return ErrnoStatus(fmt::format("cannot read attribute {} of", name), path, errno);
    }
    xattrs.push_back({name, std::move(value)});
  }
  std::sort(xattrs.begin(), xattrs.end(),
            [](const Xattr& a, const Xattr& b) { return a.name < b.name; });
  return xattrs;
}

std::string FdPath(int fd, std::string_view name) {
  return name.empty() ? fmt::format("/proc/self/fd/{}", fd)
                      : fmt::format("/proc/self/fd/{}/{}", fd, name);
}

bool IsWhiteout(const struct stat& status) {
  return S_ISCHR(status.st_mode) && status.st_rdev == 0;
}

absl::StatusOr<std::vector<std::string>> SplitPath(std::string_view path) {
  constexpr size_t kMaxName = 255, kMaxPath = 4095;
  if (path.size() > kMaxPath) return InvalidInput("a path of {} bytes", path.size());
  if (path.find('\0') != std::string_view::npos) return InvalidInput("a zero byte in a path");
  std::vector<std::string> components;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() || name == ".") continue;
    if (name == "..") return InvalidInput("'..' in a path");
    if (name.size() > kMaxName) return InvalidInput("a name of {} bytes in a path", name.size());
    components.emplace_back(name);
  }
  return components;
}

std::string JoinPath(const std::vector<std::string>& components, size_t count) {
  std::string path;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) path += '/';
    path += components[i];
  }
  return path;
}

}  // namespace orrery::sandbox::image

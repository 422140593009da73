// Descriptors and trees: opening what lies below a folder whatever links are in it, and deleting a
// tree of any depth. Nothing here follows a link out of the folder it is given.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::sandbox::image {

// Owns a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// openat2 with RESOLVE_IN_ROOT: links, absolute ones too, and ".." stay below `root`. The last
// component is not followed with O_NOFOLLOW. -1 and errno as open(2).
int OpenInRoot(int root, const std::string& path, int flags, mode_t mode = 0);

// Everything at `name` in the folder `parent`; fine where nothing is. Two descriptors and the
// names of one path's folders, however deep and wide the tree is.
absl::Status RemoveTree(int parent, const std::string& name);
absl::Status RemoveTree(const std::string& path);

absl::StatusOr<Fd> OpenFolder(const std::string& path);

// Names in a folder, sorted by bytes; `fd` may be O_PATH.
absl::StatusOr<std::vector<std::string>> ListFolder(int fd);

// All extended attributes, sorted by name. `path` as getxattr(2) with links not followed.
struct Xattr {
  std::string name, value;
};
absl::StatusOr<std::vector<Xattr>> ReadXattrs(const std::string& path);

// "/proc/self/fd/N" and "/proc/self/fd/N/NAME": paths for the calls that take no descriptor.
std::string FdPath(int fd, std::string_view name = "");

// A whiteout in overlayfs form: a character device 0/0.
bool IsWhiteout(const struct stat& status);

inline constexpr char kOpaqueXattr[] = "trusted.overlay.opaque";

// An archive's path as components: no empty one and no "."; an error for "..", a zero byte, a name
// over 255 bytes or a path over 4096. Empty: the root itself.
absl::StatusOr<std::vector<std::string>> SplitPath(std::string_view path);

// "a/b/c".
std::string JoinPath(const std::vector<std::string>& components, size_t count);

}  // namespace orrery::sandbox::image

#include "sandbox/disk/remove_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Unlinks what is no folder and gives the names of those that are.
absl::Status RemoveFiles(int folder, std::vector<std::string>& folders) {
  const int copy = ::openat(folder, ".", kOpenFolder);
  DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
  if (stream == nullptr) return ErrnoStatus("cannot read", "a folder to delete", errno);
  absl::Status status;
  while (const dirent* item = ::readdir(stream)) {
    const std::string name = item->d_name;
    if (name == "." || name == "..") continue;
    if (::unlinkat(folder, item->d_name, 0) == 0 || errno == ENOENT) continue;
    if (errno == EISDIR || errno == EPERM) {
      folders.push_back(name);
    } else {
      status = ErrnoStatus("cannot delete", name, errno);
    }
  }
  ::closedir(stream);
  return status;
}

// The walk goes down into the last folder of each level and up again by "..".
class Remover {
 public:
  explicit Remover(Descriptor top) : here_(std::move(top)) {}

  absl::Status Run() {
    levels_.emplace_back();
    RETURN_IF_ERROR(RemoveFiles(here_.get(), levels_.back()));
    while (true) {
      if (!levels_.back().empty()) {
        RETURN_IF_ERROR(Descend());
        continue;
      }
      levels_.pop_back();
      if (levels_.empty()) return absl::OkStatus();
      RETURN_IF_ERROR(Ascend());
    }
  }

 private:
  absl::Status Descend() {
    const std::string& name = levels_.back().back();
    if (::unlinkat(here_.get(), name.c_str(), AT_REMOVEDIR) == 0) {
      levels_.back().pop_back();
      return absl::OkStatus();
    }
    Descriptor below(::openat(here_.get(), name.c_str(), kOpenFolder));
    if (!below.valid()) return ErrnoStatus("cannot open to delete", name, errno);
    here_ = std::move(below);
    levels_.emplace_back();
    return RemoveFiles(here_.get(), levels_.back());
  }

  absl::Status Ascend() {
    Descriptor above(::openat(here_.get(), "..", kOpenFolder));
    if (!above.valid()) return ErrnoStatus("cannot go up from", levels_.back().back(), errno);
    here_ = std::move(above);
    const std::string name = std::move(levels_.back().back());
    levels_.back().pop_back();
    if (::unlinkat(here_.get(), name.c_str(), AT_REMOVEDIR) == 0) return absl::OkStatus();
    return ErrnoStatus("cannot delete", name, errno);
  }

  Descriptor here_;
  std::vector<std::vector<std::string>> levels_;  // folders still to delete, of each level
};

}  // namespace

absl::Status RemoveTree(const std::string& path) {
  Descriptor top(::open(path.c_str(), kOpenFolder));
  if (!top.valid()) {
    if (errno == ENOENT) return absl::OkStatus();
    if ((errno == ENOTDIR || errno == ELOOP) && ::unlink(path.c_str()) == 0) {
      return absl::OkStatus();
    }
    return ErrnoStatus("cannot open to delete", path, errno);
  }
  RETURN_IF_ERROR(Annotate(Remover(std::move(top)).Run(), path));
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus("cannot delete", path, errno);
}

}  // namespace orrery::sandbox

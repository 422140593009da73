#include "sandbox/image/tree_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/content_hash.h"

namespace orrery::sandbox::image {
namespace {

constexpr int64_t kMaxWaitingBytes = 64 << 20;
constexpr size_t kMaxParents = 512, kMaxInFlight = 100'000;
constexpr mode_t kImplicitMode = 0755;

std::string InFlightKey(ino_t inode, const std::string& name) {
  return fmt::format("{}/{}", inode, name);
}

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus("cannot write", path, errno);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status SetTime(int fd, const timespec& mtime, const std::string& path) {
  const timespec times[2] = {mtime, mtime};
  if (::futimens(fd, times) != 0) return ErrnoStatus("cannot set the time of", path, errno);
  return absl::OkStatus();
}

// What the file has already (by umask, by a set-group-id parent) is asked, not assumed. chown
// clears set-id bits and file capabilities, so it comes first.
absl::Status SetAttributes(int fd, const Attributes& attributes, const std::string& path) {
  struct stat now;
  if (::fstat(fd, &now) != 0) return ErrnoStatus("cannot stat", path, errno);
  const bool owned = now.st_uid == attributes.uid && now.st_gid == attributes.gid;
  if (!owned && ::fchown(fd, attributes.uid, attributes.gid) != 0) {
    return ErrnoStatus("cannot set the owner of", path, errno);
  }
  const bool has_mode = owned && (now.st_mode & 07777) == attributes.mode;
  if (!has_mode && ::fchmod(fd, attributes.mode) != 0) {
    return ErrnoStatus("cannot set the mode of", path, errno);
  }
  for (const Xattr& xattr : attributes.xattrs) {
    if (::fsetxattr(fd, xattr.name.c_str(), xattr.value.data(), xattr.value.size(), 0) != 0) {
      return ErrnoStatus(fmt::format("cannot set attribute {} of", xattr.name), path, errno);
    }
  }
  return SetTime(fd, attributes.mtime, path);
}

absl::Status SetOpaque(int folder, const std::string& path) {
  if (::fsetxattr(folder, kOpaqueXattr, "y", 1, 0) == 0) return absl::OkStatus();
  return ErrnoStatus(fmt::format("cannot set {} on", kOpaqueXattr), path, errno);
}

std::string WholePath(const Components& path) { return JoinPath(path, path.size()); }

}  // namespace

TreeWriter::TreeWriter(int root, int threads) : root_(root), workers_(threads, kMaxWaitingBytes) {
  facts_.implicit.insert("");
  folders_[""] = {};
}

absl::StatusOr<TreeWriter::SharedParent> TreeWriter::OpenParent(const Components& path,
                                                                size_t count) {
  const std::string joined = JoinPath(path, count);
  if (const auto found = parents_.find(joined); found != parents_.end()) return found->second;
  Fd fd(OpenInRoot(root_, count == 0 ? "." : joined, O_PATH | O_DIRECTORY));
  if (!fd.ok() && (errno == ENOENT || errno == ENOTDIR)) {
    RETURN_IF_ERROR(MakeMissing(path, count));
    fd = Fd(OpenInRoot(root_, joined, O_PATH | O_DIRECTORY));
  }
  struct stat status;
  if (!fd.ok() || ::fstat(fd.get(), &status) != 0) {
    return InvalidInput("'{}' is no folder, and something lies below it: {}", joined,
                        std::strerror(errno));
  }
  if (parents_.size() >= kMaxParents) parents_.clear();
  auto parent = std::make_shared<const Parent>(Parent{std::move(fd), status.st_ino});
  parents_[joined] = parent;
  return parent;
}

// What an entry lies below and the layer has not named.
absl::Status TreeWriter::MakeMissing(const Components& path, size_t count) {
  ASSIGN_OR_RETURN(const SharedParent parent, OpenParent(path, count - 1));
  const std::string& name = path[count - 1];
  const std::string joined = JoinPath(path, count);
  RETURN_IF_ERROR(DrainIfInFlight(*parent, name));
  struct stat status;
  const bool exists = ::fstatat(parent->fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (exists && !IsWhiteout(status)) return absl::OkStatus();  // the caller says what it is
  if (exists && ::unlinkat(parent->fd.get(), name.c_str(), 0) != 0) {
    return ErrnoStatus("cannot remove", joined, errno);
  }
  if (::mkdirat(parent->fd.get(), name.c_str(), kImplicitMode) != 0) {
    return ErrnoStatus("cannot make", joined, errno);
  }
  const Fd folder(::openat(parent->fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.ok()) return ErrnoStatus("cannot open", joined, errno);
  RETURN_IF_ERROR(SetAttributes(folder.get(), {.mode = kImplicitMode}, joined));
  folders_[joined] = {};
  if (!exists) {
    facts_.implicit.insert(joined);
    return absl::OkStatus();
  }
  facts_.whiteouts.erase(joined);
  facts_.opaque.insert(joined);
  return SetOpaque(folder.get(), joined);
}

absl::Status TreeWriter::Drain() {
  RETURN_IF_ERROR(workers_.Wait());
  in_flight_.clear();
  std::vector<Postponed> postponed;
  {
    const std::lock_guard lock(mutex_);
    postponed.swap(postponed_);
  }
  for (const Postponed& file : postponed) {
    ASSIGN_OR_RETURN(const Components path, SplitPath(file.path));
    RETURN_IF_ERROR(Replace(*file.parent, path));
    RETURN_IF_ERROR(WriteSmall(file.parent, file.name, file.path, file.attributes, file.content));
  }
  return absl::OkStatus();
}

absl::Status TreeWriter::DrainIfInFlight(const Parent& parent, const std::string& name) {
  if (in_flight_.empty() || !in_flight_.contains(InFlightKey(parent.inode, name))) {
    return absl::OkStatus();
  }
  return Drain();
}

void TreeWriter::Forget(const std::string& path) {
  const auto forget = [&](auto* sorted) {
    auto it = sorted->lower_bound(path);
    const auto key = [&] {
      if constexpr (requires { it->first; }) {
        return std::string_view(it->first);
      } else {
        return std::string_view(*it);
      }
    };
    while (it != sorted->end() && key().starts_with(path)) {
      const bool below = key().size() == path.size() || key()[path.size()] == '/';
      it = below ? sorted->erase(it) : std::next(it);
    }
  };
  forget(&folders_);
  forget(&facts_.implicit);
  forget(&facts_.whiteouts);
  forget(&facts_.opaque);
  parents_.clear();
}

absl::Status TreeWriter::Replace(const Parent& parent, const Components& path) {
  const std::string& name = path.back();
  if (::unlinkat(parent.fd.get(), name.c_str(), 0) == 0) {
    if (!facts_.whiteouts.empty()) facts_.whiteouts.erase(WholePath(path));
    parents_.clear();  // it may have been a link to a folder
    return absl::OkStatus();
  }
  if (errno == ENOENT) return absl::OkStatus();
  Forget(WholePath(path));
  return RemoveTree(parent.fd.get(), name);
}

absl::StatusOr<TreeWriter::SharedParent> TreeWriter::Clear(const Components& path) {
  if (path.empty()) return InvalidInput("the root can only be a folder");
  ASSIGN_OR_RETURN(SharedParent parent, OpenParent(path, path.size() - 1));
  RETURN_IF_ERROR(DrainIfInFlight(*parent, path.back()));
  RETURN_IF_ERROR(Replace(*parent, path));
  return parent;
}

absl::Status TreeWriter::MakeFolder(const Components& path, const Attributes& attributes) {
  const std::string joined = WholePath(path);
  bool was_whiteout = false;
  Fd folder;
  if (path.empty()) {
    folder = Fd(::openat(root_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  } else {
    ASSIGN_OR_RETURN(const SharedParent parent, OpenParent(path, path.size() - 1));
    RETURN_IF_ERROR(DrainIfInFlight(*parent, path.back()));
    if (::mkdirat(parent->fd.get(), path.back().c_str(), 0700) != 0) {
      struct stat status;
      if (errno != EEXIST ||
          ::fstatat(parent->fd.get(), path.back().c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return ErrnoStatus("cannot make", joined, errno);
      }
      was_whiteout = IsWhiteout(status);
      if (!S_ISDIR(status.st_mode)) {
        RETURN_IF_ERROR(Replace(*parent, path));
        if (::mkdirat(parent->fd.get(), path.back().c_str(), 0700) != 0) {
          return ErrnoStatus("cannot make", joined, errno);
        }
      }
    }
    folder = Fd(::openat(parent->fd.get(), path.back().c_str(),
                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
  if (!folder.ok()) return ErrnoStatus("cannot open", joined, errno);
  if (was_whiteout) {
    facts_.opaque.insert(joined);
    RETURN_IF_ERROR(SetOpaque(folder.get(), joined));
  }
  facts_.implicit.erase(joined);
  folders_[joined] = attributes.mtime;
  return SetAttributes(folder.get(), attributes, joined);
}

absl::Status TreeWriter::MakeFile(const Components& path, Attributes attributes,
                                  std::string content) {
  if (path.empty()) return InvalidInput("the root can only be a folder");
  ASSIGN_OR_RETURN(SharedParent parent, OpenParent(path, path.size() - 1));
  if (in_flight_.size() >= kMaxInFlight) RETURN_IF_ERROR(Drain());
  if (!in_flight_.insert(InFlightKey(parent->inode, path.back())).second) {
    RETURN_IF_ERROR(Drain());
    in_flight_.insert(InFlightKey(parent->inode, path.back()));
  }
  const auto bytes = static_cast<int64_t>(content.size() + 512);
  workers_.Submit(
      [this, parent = std::move(parent), name = path.back(), joined = WholePath(path),
       attributes = std::move(attributes), content = std::move(content)]() mutable {
        absl::Status status = WriteSmall(parent, name, joined, attributes, content);
        if (!absl::IsAlreadyExists(status)) return status;
        const std::lock_guard lock(mutex_);
        postponed_.push_back({parent, name, joined, std::move(attributes), std::move(content)});
        return absl::OkStatus();
      },
      bytes);
  return absl::OkStatus();
}

// Any thread. AlreadyExists where something of the name is there.
absl::Status TreeWriter::WriteSmall(const SharedParent& parent, const std::string& name,
                                    const std::string& path, const Attributes& attributes,
                                    const std::string& content) {
  const Fd file(::openat(parent->fd.get(), name.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         attributes.mode & 0777));
  if (!file.ok() && errno == EEXIST) return absl::AlreadyExistsError(path);
  struct stat status;
  if (!file.ok() || ::fstat(file.get(), &status) != 0) {
    return ErrnoStatus("cannot make", path, errno);
  }
  RETURN_IF_ERROR(WriteAll(file.get(), content, path));
  RETURN_IF_ERROR(SetAttributes(file.get(), attributes, path));
  std::string hash = HashContent(content);
  const std::lock_guard lock(mutex_);
  facts_.hashes[status.st_ino] = std::move(hash);
  return absl::OkStatus();
}

absl::StatusOr<Fd> TreeWriter::OpenFile(const Components& path) {
  ASSIGN_OR_RETURN(const SharedParent parent, Clear(path));
  Fd file(::openat(parent->fd.get(), path.back().c_str(),
                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.ok()) return ErrnoStatus("cannot make", WholePath(path), errno);
  return file;
}

absl::Status TreeWriter::CloseFile(const Components& components, Fd file,
                                   const Attributes& attributes, int64_t size) {
  const std::string path = WholePath(components);
  if (::ftruncate(file.get(), size) != 0) return ErrnoStatus("cannot size", path, errno);
  RETURN_IF_ERROR(SetAttributes(file.get(), attributes, path));
  const auto shared = std::make_shared<Fd>(std::move(file));
  workers_.Submit(
      [this, shared, path]() -> absl::Status {
        struct stat status;
        if (::fstat(shared->get(), &status) != 0) return ErrnoStatus("cannot stat", path, errno);
        ASSIGN_OR_RETURN(std::string hash, HashFile(shared->get(), path));
        const std::lock_guard lock(mutex_);
        facts_.hashes[status.st_ino] = std::move(hash);
        return absl::OkStatus();
      },
      0);
  return absl::OkStatus();
}

absl::Status TreeWriter::MakeLink(const Components& path, const Attributes& attributes,
                                  const std::string& target) {
  ASSIGN_OR_RETURN(const SharedParent parent, Clear(path));
  const std::string joined = WholePath(path);
  const int folder = parent->fd.get();
  const char* name = path.back().c_str();
  const timespec times[2] = {attributes.mtime, attributes.mtime};
  if (::symlinkat(target.c_str(), folder, name) != 0 ||
      ::fchownat(folder, name, attributes.uid, attributes.gid, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::utimensat(folder, name, times, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoStatus("cannot make link", joined, errno);
  }
  return absl::OkStatus();
}

absl::Status TreeWriter::MakeFifo(const Components& path, const Attributes& attributes) {
  ASSIGN_OR_RETURN(const SharedParent parent, Clear(path));
  const int folder = parent->fd.get();
  const char* name = path.back().c_str();
  const timespec times[2] = {attributes.mtime, attributes.mtime};
  if (::mkfifoat(folder, name, 0600) != 0 ||
      ::fchownat(folder, name, attributes.uid, attributes.gid, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::fchmodat(folder, name, attributes.mode, 0) != 0 ||
      ::utimensat(folder, name, times, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoStatus("cannot make FIFO", WholePath(path), errno);
  }
  return absl::OkStatus();
}

absl::Status TreeWriter::MakeHardLink(const Components& path, const Components& target) {
  if (target.empty()) return InvalidInput("a hard link to the root");
  ASSIGN_OR_RETURN(const SharedParent from, OpenParent(target, target.size() - 1));
  RETURN_IF_ERROR(Drain());
  struct stat status;
  if (::fstatat(from->fd.get(), target.back().c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return InvalidInput("a hard link to '{}', which the layer does not have before it",
                        WholePath(target));
  }
  if (S_ISDIR(status.st_mode) || IsWhiteout(status)) {
    return InvalidInput("a hard link to '{}', which is no file", WholePath(target));
  }
  if (path == target) return absl::OkStatus();
  ASSIGN_OR_RETURN(const SharedParent parent, Clear(path));
  if (::linkat(from->fd.get(), target.back().c_str(), parent->fd.get(), path.back().c_str(), 0) !=
      0) {
    return ErrnoStatus("cannot link", WholePath(path), errno);
  }
  return absl::OkStatus();
}

// It takes away what lies below, never what this layer itself brings, before or after.
absl::Status TreeWriter::MakeWhiteout(const Components& path) {
  ASSIGN_OR_RETURN(const SharedParent parent, OpenParent(path, path.size() - 1));
  RETURN_IF_ERROR(Drain());
  const std::string joined = WholePath(path);
  struct stat status;
  if (::fstatat(parent->fd.get(), path.back().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    return S_ISDIR(status.st_mode) ? MakeOpaque(path) : absl::OkStatus();
  }
  if (::mknodat(parent->fd.get(), path.back().c_str(), S_IFCHR, makedev(0, 0)) != 0) {
    return ErrnoStatus("cannot make the whiteout", joined, errno);
  }
  const timespec times[2] = {};
  ::utimensat(parent->fd.get(), path.back().c_str(), times, AT_SYMLINK_NOFOLLOW);
  facts_.whiteouts.insert(joined);
  return absl::OkStatus();
}

absl::Status TreeWriter::MakeOpaque(const Components& path) {
  const std::string joined = WholePath(path);
  RETURN_IF_ERROR(OpenParent(path, path.size()).status());
  const Fd folder(OpenInRoot(root_, path.empty() ? "." : joined, O_RDONLY | O_DIRECTORY));
  if (!folder.ok()) return ErrnoStatus("cannot open", joined, errno);
  facts_.opaque.insert(joined);
  return SetOpaque(folder.get(), joined);
}

absl::StatusOr<TreeFacts> TreeWriter::Finish() {
  RETURN_IF_ERROR(Drain());
  for (const auto& [path, mtime] : folders_) {
    const Fd folder(
        OpenInRoot(root_, path.empty() ? "." : path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    if (!folder.ok()) continue;  // by a way that links have changed since
    RETURN_IF_ERROR(SetTime(folder.get(), mtime, path));
  }
  return std::move(facts_);
}

}  // namespace orrery::sandbox::image

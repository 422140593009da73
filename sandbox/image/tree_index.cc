#include "sandbox/image/tree_index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/content_hash.h"

namespace orrery::sandbox::image {
namespace {

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\') {
      escaped += fmt::format("\\x{:02x}", byte);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

char TypeOf(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return 'f';
  if (S_ISDIR(status.st_mode)) return 'd';
  if (S_ISLNK(status.st_mode)) return 'l';
  if (S_ISFIFO(status.st_mode)) return 'p';
  return IsWhiteout(status) ? 'w' : '?';
}

class Indexer {
 public:
  Indexer(int root, const FileHashes* known) : root_(root), known_(known) {}

  absl::StatusOr<TreeIndex> Run() {
    std::vector<std::string> folders = {""};
    while (!folders.empty()) {
      const std::string path = std::move(folders.back());
      folders.pop_back();
      RETURN_IF_ERROR(AddFolder(path, &folders));
    }
    return std::move(index_);
  }

 private:
  absl::Status AddFolder(const std::string& path, std::vector<std::string>* folders) {
    const Fd folder(
        OpenInRoot(root_, path.empty() ? "." : path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    struct stat status;
    if (!folder.ok() || ::fstat(folder.get(), &status) != 0) {
      return ErrnoStatus("cannot open", path, errno);
    }
    RETURN_IF_ERROR(AddLine(status, "-", FdPath(folder.get()) + "/.", path));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder.get()));
    const size_t first = folders->size();
    for (const std::string& name : names) {
      const std::string below = path.empty() ? name : path + "/" + name;
      if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return ErrnoStatus("cannot stat", below, errno);
      }
      if (S_ISDIR(status.st_mode)) {
        folders->push_back(below);
        continue;
      }
      ASSIGN_OR_RETURN(const std::string content, Content(folder.get(), name, status, below));
      RETURN_IF_ERROR(AddLine(status, content, FdPath(folder.get(), name), below));
    }
    std::reverse(folders->begin() + static_cast<std::ptrdiff_t>(first), folders->end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Content(int folder, const std::string& name,
                                      const struct stat& status, const std::string& path) {
    if (S_ISLNK(status.st_mode)) {
      std::string target(static_cast<size_t>(status.st_size) + 1, '\0');
      const ssize_t size = ::readlinkat(folder, name.c_str(), target.data(), target.size());
      if (size < 0) return ErrnoStatus("cannot read link", path, errno);
      target.resize(static_cast<size_t>(size));
      return Escape(target);
    }
    if (!S_ISREG(status.st_mode)) return std::string("0");
    if (status.st_nlink > 1) {
      const auto [first, is_new] = links_.try_emplace(status.st_ino, path);
      if (!is_new) return "= " + Escape(first->second);
    }
    if (known_ != nullptr) {
      const auto found = known_->find(status.st_ino);
      if (found != known_->end()) return found->second;
    }
    const Fd file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file.ok()) return ErrnoStatus("cannot open", path, errno);
    return HashFile(file.get(), path);
  }

  absl::Status AddLine(const struct stat& status, const std::string& content,
                       const std::string& host_path, const std::string& path) {
    ASSIGN_OR_RETURN(const std::vector<Xattr> xattrs, ReadXattrs(host_path));
    std::string attributes;
    for (const Xattr& xattr : xattrs) {
      attributes += fmt::format("{}={}:{};", xattr.name, xattr.value.size(), xattr.value);
    }
    const bool has_size = S_ISREG(status.st_mode);
    index_.text +=
        fmt::format("{}\t{:o}\t{}\t{}\t{}\t{}.{:09}\t{}\t{}\t{}\n", TypeOf(status),
                    status.st_mode & 07777, status.st_uid, status.st_gid,
                    has_size ? status.st_size : 0, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                    content, attributes.empty() ? "-" : Sha256(attributes), Escape(path));
    ++index_.files;
    if (!content.starts_with("= ")) index_.bytes += status.st_blocks * 512;
    return absl::OkStatus();
  }

  const int root_;
  const FileHashes* known_;
  TreeIndex index_;
  std::unordered_map<ino_t, std::string> links_;
};

}  // namespace

absl::StatusOr<TreeIndex> IndexTree(int root, const FileHashes* known) {
  return Indexer(root, known).Run();
}

}  // namespace orrery::sandbox::image

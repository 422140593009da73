#include "sandbox/image/folder_tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <unordered_map>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/tree.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kReadBytes = 256 << 10;

struct FreeArchive {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct FreeEntry {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};
using Entry = std::unique_ptr<archive_entry, FreeEntry>;

class FolderTar {
 public:
  FolderTar(Fd root, const FolderTarOptions& options)
      : root_(std::move(root)), options_(options), archive_(archive_write_new()) {
    CHECK(archive_ != nullptr);
    archive_write_set_format_pax(archive_.get());  // the restricted one drops parts of a second
    // Names are bytes.
    archive_write_set_options(archive_.get(), "hdrcharset=BINARY");
    archive_write_set_bytes_per_block(archive_.get(), 0);
    const auto write = [](archive*, void* self, const void* data, size_t size) -> la_ssize_t {
      static_cast<FolderTar*>(self)->output_.append(static_cast<const char*>(data), size);
      return static_cast<la_ssize_t>(size);
    };
    archive_write_open(archive_.get(), this, nullptr, write, nullptr);
    left_.push_back("");
  }

  absl::StatusOr<std::string_view> Next() {
    output_.clear();
    while (output_.empty() && !closed_) RETURN_IF_ERROR(Step());
    return std::string_view(output_);
  }

 private:
  absl::Status Step() {
    if (file_.ok()) return CopyPiece();
    if (!left_.empty()) {
      const std::string path = std::move(left_.back());
      left_.pop_back();
      return AddPath(path);
    }
    closed_ = true;
    return Check(archive_write_close(archive_.get()), "the end");
  }

  absl::Status Check(int result, const std::string& path) const {
    if (result == ARCHIVE_OK || result == ARCHIVE_WARN) return absl::OkStatus();
    return Failed("cannot write '{}' as tar: {}", path, archive_error_string(archive_.get()));
  }

  std::string NameOf(const std::string& path) const {
    if (options_.prefix.empty()) return path.empty() ? "./" : path;
    return path.empty() ? options_.prefix : options_.prefix + "/" + path;
  }

  absl::Status AddPath(const std::string& path) {
    const Fd here(OpenInRoot(root_.get(), path.empty() ? "." : path, O_PATH | O_NOFOLLOW));
    struct stat status;
    if (!here.ok() || ::fstat(here.get(), &status) != 0) {
      return ErrnoStatus("cannot open", path, errno);
    }
    if (S_ISSOCK(status.st_mode)) return absl::OkStatus();
    const Entry entry(archive_entry_new());
    // What depends on where and when the folder lies stays out.
    struct stat stable = status;
    stable.st_dev = 0;
    stable.st_ino = 0;
    stable.st_nlink = 1;
    archive_entry_copy_stat(entry.get(), &stable);
    archive_entry_unset_atime(entry.get());
    archive_entry_unset_ctime(entry.get());
    archive_entry_set_pathname(entry.get(), NameOf(path).c_str());
    archive_entry_set_size(entry.get(), S_ISREG(status.st_mode) ? status.st_size : 0);
    if (S_ISLNK(status.st_mode)) RETURN_IF_ERROR(AddTarget(here.get(), path, entry.get()));
    bool further_link = false;
    if (!S_ISDIR(status.st_mode) && status.st_nlink > 1) {
      const auto [first, is_new] = links_.try_emplace(status.st_ino, NameOf(path));
      further_link = !is_new;
      if (further_link) archive_entry_set_hardlink(entry.get(), first->second.c_str());
      if (further_link) archive_entry_set_size(entry.get(), 0);
    }
    RETURN_IF_ERROR(AddXattrs(path, status, entry.get()));
    RETURN_IF_ERROR(Check(archive_write_header(archive_.get(), entry.get()), path));
    if (S_ISDIR(status.st_mode)) return AddFolder(path);
    if (!S_ISREG(status.st_mode) || further_link) return absl::OkStatus();
    file_ = Fd(OpenInRoot(root_.get(), path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    file_left_ = status.st_size;
    if (!file_.ok()) return ErrnoStatus("cannot open", path, errno);
    return absl::OkStatus();
  }

  static absl::Status AddTarget(int link, const std::string& path, archive_entry* entry) {
    std::string target(4096, '\0');
    const ssize_t size = ::readlinkat(link, "", target.data(), target.size());
    if (size < 0) return ErrnoStatus("cannot read link", path, errno);
    target.resize(static_cast<size_t>(size));
    archive_entry_set_symlink(entry, target.c_str());
    return absl::OkStatus();
  }

  absl::Status AddXattrs(const std::string& path, const struct stat& status,
                         archive_entry* entry) const {
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return absl::OkStatus();
    const std::string host = FdPath(root_.get(), path.empty() ? "." : path);
    ASSIGN_OR_RETURN(const std::vector<Xattr> xattrs, ReadXattrs(host));
    for (const Xattr& xattr : xattrs) {
      archive_entry_xattr_add_entry(entry, xattr.name.c_str(), xattr.value.data(),
                                    xattr.value.size());
    }
    return absl::OkStatus();
  }

  absl::Status AddFolder(const std::string& path) {
    const Fd folder(
        OpenInRoot(root_.get(), path.empty() ? "." : path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    if (!folder.ok()) return ErrnoStatus("cannot open", path, errno);
    if (std::count(options_.opaque.begin(), options_.opaque.end(), path) > 0) {
      RETURN_IF_ERROR(AddOpaque(path));
    }
    ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(folder.get()));
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      left_.push_back(path.empty() ? *name : path + "/" + *name);
    }
    return absl::OkStatus();
  }

  absl::Status AddOpaque(const std::string& path) {
    const Entry entry(archive_entry_new());
    archive_entry_set_pathname(entry.get(), (NameOf(path) + "/.wh..wh..opq").c_str());
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0600);
    archive_entry_set_size(entry.get(), 0);
    archive_entry_set_mtime(entry.get(), 0, 0);
    return Check(archive_write_header(archive_.get(), entry.get()), path);
  }

  // A file that grows or shrinks meanwhile is cut, or filled with zeros by libarchive.
  absl::Status CopyPiece() {
    buffer_.resize(kReadBytes);
    const auto wanted = static_cast<size_t>(std::min<int64_t>(kReadBytes, file_left_));
    const ssize_t size = wanted == 0 ? 0 : ::read(file_.get(), buffer_.data(), wanted);
    if (size < 0 && errno == EINTR) return absl::OkStatus();
    if (size < 0) return ErrnoStatus("cannot read", "a file of the folder", errno);
    if (size == 0) {
      file_ = Fd();
      return absl::OkStatus();
    }
    file_left_ -= size;
    if (archive_write_data(archive_.get(), buffer_.data(), static_cast<size_t>(size)) < 0) {
      return Failed("cannot write tar: {}", archive_error_string(archive_.get()));
    }
    return absl::OkStatus();
  }

  Fd root_;
  const FolderTarOptions options_;
  std::string output_, buffer_;
  std::vector<std::string> left_;  // the next one last
  std::unordered_map<ino_t, std::string> links_;
  Fd file_;
  int64_t file_left_ = 0;
  bool closed_ = false;
  std::unique_ptr<archive, FreeArchive> archive_;
};

}  // namespace

absl::StatusOr<ByteSource> TarOfFolder(const std::string& folder, const FolderTarOptions& options) {
  ASSIGN_OR_RETURN(Fd root, OpenFolder(folder));
  auto tar = std::make_shared<FolderTar>(std::move(root), options);
  return ByteSource([tar] { return tar->Next(); });
}

}  // namespace orrery::sandbox::image

#include "sandbox/image/file_set.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/manifest.h"
#include "sandbox/image/tar_stream.h"

namespace orrery::sandbox::image {
namespace {

constexpr int kMaxLinks = 8;

class FolderFiles : public FileSet {
 public:
  explicit FolderFiles(Fd root) : root_(std::move(root)) {}
  bool Has(const std::string& name) const override {
    return Fd(OpenInRoot(root_.get(), name, O_PATH)).ok();
  }
  absl::StatusOr<Fd> Open(const std::string& name) const override {
    Fd file(OpenInRoot(root_.get(), name, O_RDONLY | O_NONBLOCK));
    struct stat status;
    if (!file.ok() || ::fstat(file.get(), &status) != 0) {
      return ErrnoStatus("cannot open", name, errno);
    }
    if (!S_ISREG(status.st_mode)) return InvalidInput("{}: no regular file", name);
    return file;
  }

 private:
  Fd root_;
};

class SpreadFiles : public FileSet {
 public:
  SpreadFiles(std::map<std::string, std::string> paths, std::map<std::string, std::string> links)
      : paths_(std::move(paths)), links_(std::move(links)) {}

  bool Has(const std::string& name) const override { return paths_.contains(Follow(name)); }
  absl::StatusOr<Fd> Open(const std::string& name) const override {
    const auto found = paths_.find(Follow(name));
    if (found == paths_.end()) return NotFound("the archive has no file '{}'", name);
    Fd file(::open(found->second.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.ok()) return ErrnoStatus("cannot open", found->second, errno);
    return file;
  }

 private:
  std::string Follow(std::string name) const {
    for (int i = 0; i < kMaxLinks; ++i) {
      const auto link = links_.find(name);
      if (link == links_.end()) return name;
      name = link->second;
    }
    return name;
  }

  std::map<std::string, std::string> paths_, links_;
};

std::string_view OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// "./a//b" as "a/b"; "" where it leads outside.
std::string Normalize(std::string_view path) {
  const auto components = SplitPath(path);
  return components.ok() ? JoinPath(*components, components->size()) : "";
}

// A link's target from the folder of the link, ".." resolved.
std::string ResolveTarget(const std::string& link, const std::string& target) {
  std::vector<std::string> parts;
  const std::string joined =
      target.starts_with('/') ? target : link.substr(0, link.rfind('/') + 1) + target;
  for (size_t begin = 0; begin <= joined.size();) {
    const size_t end = std::min(joined.find('/', begin), joined.size());
    const std::string part = joined.substr(begin, end - begin);
    begin = end + 1;
    if (part == ".." && !parts.empty()) parts.pop_back();
    if (!part.empty() && part != "." && part != "..") parts.push_back(part);
  }
  return JoinPath(parts, parts.size());
}

class Spreader {
 public:
  Spreader(ByteSource tar, const std::string& staging, const UnpackLimits& limits)
      : limits_(ImageLimits(limits)),
        staging_(staging),
        stream_(std::move(tar), limits_, nullptr) {}

  absl::StatusOr<std::shared_ptr<FileSet>> Run() {
    while (true) {
      ASSIGN_OR_RETURN(archive_entry* const entry, stream_.Next());
      if (entry == nullptr) break;
      if (++entries_ > limits_.max_entries) {
        return Exhausted("more than the {} entries allowed", limits_.max_entries);
      }
      RETURN_IF_ERROR(Take(entry));
    }
    return std::make_shared<SpreadFiles>(std::move(paths_), std::move(links_));
  }

 private:
  static UnpackLimits ImageLimits(UnpackLimits limits) {
    limits.max_bytes = limits.max_image_bytes;
    return limits;
  }

  absl::Status Take(archive_entry* entry) {
    const std::string name = Normalize(OrEmpty(archive_entry_pathname(entry)));
    if (name.empty()) return absl::OkStatus();
    if (const char* target = archive_entry_hardlink(entry); target != nullptr) {
      links_[name] = Normalize(target);
      return absl::OkStatus();
    }
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFLNK) {
      links_[name] = ResolveTarget(name, std::string(OrEmpty(archive_entry_symlink(entry))));
    }
    return type == AE_IFREG ? Copy(name) : absl::OkStatus();
  }

  absl::Status Copy(const std::string& name) {
    const std::string path = fmt::format("{}/{}", staging_, paths_.size());
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.ok()) return ErrnoStatus("cannot make", path, errno);
    while (true) {
      ASSIGN_OR_RETURN(TarStream::Piece piece, stream_.Read());
      if (piece.data.empty()) break;
      bytes_ += static_cast<int64_t>(piece.data.size());
      // A sparse file could lie about its size.
      if (piece.offset < 0 || bytes_ > limits_.max_bytes || piece.offset > limits_.max_bytes) {
        return Exhausted("files of more than {} bytes", limits_.max_bytes);
      }
      while (!piece.data.empty()) {
        const ssize_t size =
            ::pwrite(file.get(), piece.data.data(), piece.data.size(), piece.offset);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) return ErrnoStatus("cannot write", path, errno);
        piece.data.remove_prefix(static_cast<size_t>(size));
        piece.offset += size;
      }
    }
    paths_[name] = path;
    return absl::OkStatus();
  }

  const UnpackLimits limits_;
  const std::string& staging_;
  TarStream stream_;
  int64_t bytes_ = 0, entries_ = 0;
  std::map<std::string, std::string> paths_, links_;
};

bool IsHexName(std::string_view name, size_t digits) {
  return name.size() >= digits &&
         std::all_of(name.begin(), name.begin() + static_cast<int>(digits),
                     [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// What the tools that write image archives put at the top.
bool IsImageFile(std::string_view name) {
  for (const std::string_view known :
       {"manifest.json", "index.json", "oci-layout", "repositories", "blobs"}) {
    if (name == known) return true;
  }
  if (name.starts_with("blobs/") || name.starts_with("sha256:") || IsHexName(name, 64)) return true;
  if (name.find('/') != std::string_view::npos) return false;
  return name.ends_with(".json") || name.ends_with(".tar") || name.ends_with(".tar.gz");
}

}  // namespace

absl::StatusOr<std::shared_ptr<FileSet>> FilesOfFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(Fd root, OpenFolder(folder));
  return std::make_shared<FolderFiles>(std::move(root));
}

absl::StatusOr<std::shared_ptr<FileSet>> FilesOfTar(ByteSource tar, const std::string& staging,
                                                    const UnpackLimits& limits) {
  return Spreader(std::move(tar), staging, limits).Run();
}

absl::StatusOr<bool> IsImageArchive(ByteSource tar, const UnpackLimits& limits) {
  TarStream stream(std::move(tar), limits, nullptr);
  bool has_manifest = false;
  while (true) {
    ASSIGN_OR_RETURN(archive_entry* const entry, stream.Next());
    if (entry == nullptr) return has_manifest;
    const std::string name = Normalize(OrEmpty(archive_entry_pathname(entry)));
    if (name.empty() && archive_entry_filetype(entry) == AE_IFDIR) continue;
    if (!IsImageFile(name)) return false;
    has_manifest = has_manifest || name == "manifest.json" || name == "index.json";
    if (has_manifest) return true;
  }
}

absl::StatusOr<std::string> ReadDocument(const FileSet& files, const std::string& name) {
  ASSIGN_OR_RETURN(const Fd file, files.Open(name));
  const ByteSource source = ReadFrom(file.get(), name);
  std::string text;
  while (true) {
    ASSIGN_OR_RETURN(const std::string_view piece, source());
    if (piece.empty()) return text;
    text += piece;
    if (static_cast<int64_t>(text.size()) > kMaxDocumentBytes) {
      return InvalidInput("{}: more than {} bytes, no document of an image", name,
                          kMaxDocumentBytes);
    }
  }
}

absl::StatusOr<ByteSource> OpenSource(const FileSet& files, const std::string& name) {
  ASSIGN_OR_RETURN(Fd opened, files.Open(name));
  auto file = std::make_shared<Fd>(std::move(opened));
  ByteSource source = ReadFrom(file->get(), name);
  return ByteSource([file, source = std::move(source)] { return source(); });
}

}  // namespace orrery::sandbox::image

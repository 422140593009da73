#include "sandbox/diff/diff.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

constexpr int kMaxDepth = 512;
constexpr size_t kChunk = 128 << 10;

FileInfo ToFileInfo(const LayeredEntry& entry, const std::string& name) {
  FileInfo info;
  info.name = name;
  info.mode = entry.info.st_mode;
  info.uid = entry.info.st_uid;
  info.gid = entry.info.st_gid;
  info.size = entry.info.st_size;
  info.modified_ns =
      int64_t{entry.info.st_mtim.tv_sec} * 1'000'000'000 + entry.info.st_mtim.tv_nsec;
  if (S_ISLNK(info.mode)) info.target = ReadLink(entry.at, name);
  return info;
}

absl::StatusOr<bool> SameBytes(const LayeredEntry& a, const LayeredEntry& b,
                               const std::string& name) {
  if (a.info.st_size != b.info.st_size) return false;
  ASSIGN_OR_RETURN(const Descriptor left, OpenRegular(a.at, name));
  ASSIGN_OR_RETURN(const Descriptor right, OpenRegular(b.at, name));
  std::string x(kChunk, '\0'), y(kChunk, '\0');
  for (off_t at = 0; at < a.info.st_size;) {
    const ssize_t n = ::pread(left.get(), x.data(), kChunk, at);
    const ssize_t m = ::pread(right.get(), y.data(), kChunk, at);
    if (n <= 0 || n != m) return false;
    if (x.compare(0, static_cast<size_t>(n), y, 0, static_cast<size_t>(m)) != 0) return false;
    at += n;
  }
  return true;
}

absl::StatusOr<bool> SameContent(const LayeredEntry& a, const LayeredEntry& b,
                                 const std::string& name) {
  if ((a.info.st_mode & S_IFMT) != (b.info.st_mode & S_IFMT)) return false;
  if (S_ISREG(a.info.st_mode)) return SameBytes(a, b, name);
  if (S_ISLNK(a.info.st_mode)) return ReadLink(a.at, name) == ReadLink(b.at, name);
  return true;
}

bool SameOwnership(const LayeredEntry& a, const LayeredEntry& b) {
  return a.info.st_mode == b.info.st_mode && a.info.st_uid == b.info.st_uid &&
         a.info.st_gid == b.info.st_gid;
}

class Finder {
 public:
  absl::Status Walk(const FolderStack& now, const FolderStack& image, const std::string& path,
                    int depth) {
    if (depth > kMaxDepth) {
      return Exhausted("{}...: more than {} folders deep", path.substr(0, 200), kMaxDepth);
    }
    std::set<std::string> names;
    RETURN_IF_ERROR(CollectNames(now, image, names));
    for (const std::string& name : names) {
      RETURN_IF_ERROR(
          Compare(Look(now, name, false), Look(image, name, true), path + "/" + name, name, depth));
    }
    return absl::OkStatus();
  }

  std::vector<Change> Take() {
    std::sort(changes_.begin(), changes_.end(),
              [](const Change& a, const Change& b) { return a.path < b.path; });
    return std::move(changes_);
  }

 private:
  // Those that an upper layer says something about; all, where the image is hidden.
  static absl::Status CollectNames(const FolderStack& now, const FolderStack& image,
                                   std::set<std::string>& names) {
    bool hidden = true;
    for (const LayerFolder& layer : now) {
      hidden = hidden && layer.upper;
      if (!layer.upper) continue;
      ASSIGN_OR_RETURN(std::set<std::string> some, NamesIn(layer));
      names.merge(some);
    }
    if (!hidden) return absl::OkStatus();
    for (const LayerFolder& layer : image) {
      if (layer.upper) continue;
      ASSIGN_OR_RETURN(std::set<std::string> some, NamesIn(layer));
      names.merge(some);
    }
    return absl::OkStatus();
  }

  absl::Status Compare(const LayeredEntry& now, const LayeredEntry& image, const std::string& path,
                       const std::string& name, int depth) {
    if (!now.exists && !image.exists) return absl::OkStatus();
    if (!now.exists) {
      changes_.push_back({Change::Kind::kDeleted, path, {}, false, {}});
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(AddDifference(now, image, path, name));
    if (!S_ISDIR(now.info.st_mode)) return absl::OkStatus();
    const bool any_upper = std::any_of(now.below.begin(), now.below.end(),
                                       [](const LayerFolder& layer) { return layer.upper; });
    return any_upper ? Walk(now.below, image.below, path, depth + 1) : absl::OkStatus();
  }

  absl::Status AddDifference(const LayeredEntry& now, const LayeredEntry& image,
                             const std::string& path, const std::string& name) {
    Change change;
    change.path = path;
    change.info = ToFileInfo(now, name);
    const auto attributes = ExtendedAttributes(now.at, name);
    change.xattrs.assign(attributes.begin(), attributes.end());
    if (!image.exists) {
      change.kind = Change::Kind::kAdded;
      change.content = true;
      changes_.push_back(std::move(change));
      return absl::OkStatus();
    }
    change.kind = Change::Kind::kModified;
    ASSIGN_OR_RETURN(const bool same, SameContent(now, image, name));
    change.content = !same;
    if (!same || !SameOwnership(now, image) || attributes != ExtendedAttributes(image.at, name)) {
      changes_.push_back(std::move(change));
    }
    return absl::OkStatus();
  }

  std::vector<Change> changes_;
};

FolderStack ImageOf(const FolderStack& stack) {
  FolderStack image;
  for (const LayerFolder& layer : stack) {
    if (!layer.upper) image.push_back(layer);
  }
  return image;
}

}  // namespace

absl::StatusOr<std::vector<Change>> FindChanges(const FolderStack& root) {
  Finder finder;
  RETURN_IF_ERROR(finder.Walk(root, ImageOf(root), "", 0));
  return finder.Take();
}

absl::StatusOr<LayeredEntry> FindPath(const FolderStack& root, const std::string& path,
                                      std::string& name) {
  FolderStack here = root;
  LayeredEntry entry;
  for (size_t at = 1; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    name = path.substr(at, end - at);
    entry = Look(here, name, false);
    if (!entry.exists) return NotFound("{}: no such file", path);
    here = entry.below;
    at = end + 1;
  }
  if (!entry.exists) return NotFound("{}: no such file", path);
  return entry;
}

absl::Status ReadPath(const FolderStack& root, const std::string& path,
                      const std::function<void(std::string_view)>& sink) {
  std::string name;
  ASSIGN_OR_RETURN(const LayeredEntry entry, FindPath(root, path, name));
  ASSIGN_OR_RETURN(const Descriptor file, OpenRegular(entry.at, name));
  std::string buffer(kChunk, '\0');
  while (true) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot read", path, errno);
    if (n == 0) return absl::OkStatus();
    sink(std::string_view(buffer).substr(0, static_cast<size_t>(n)));
  }
}

}  // namespace orrery::sandbox

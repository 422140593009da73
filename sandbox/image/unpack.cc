#include "sandbox/image/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "sandbox/image/tar_stream.h"

namespace orrery::sandbox::image {
namespace {

constexpr int64_t kSmallFile = 1 << 20;
constexpr uint32_t kMaxOwner = 65535, kNobody = 65534;
constexpr size_t kShownPathBytes = 200;
constexpr size_t kMaxXattrs = 64, kMaxXattrBytes = 64 << 10;
constexpr std::string_view kWhiteoutPrefix = ".wh.";
constexpr std::string_view kOpaqueName = ".wh..wh..opq";
constexpr std::string_view kAufsPrefix = ".wh..wh.";

std::string_view OrEmpty(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

// Attributes that mean something to the kernel of the host, or to our overlay, are not an image's
// to set: of all, only user.* and file capabilities come through.
bool IsHarmless(std::string_view name) {
  if (name == "security.capability") return true;
  return name.starts_with("user.") && !name.starts_with("user.overlay.") && name.size() <= 255;
}

class Unpacker {
 public:
  Unpacker(ByteSource source, int root, const UnpackOptions& options)
      : options_(options),
        stream_(std::move(source), options.limits, options.progress),
        writer_(root, options.threads) {}

  absl::StatusOr<LayerFacts> Run() {
    while (true) {
      ASSIGN_OR_RETURN(archive_entry* const entry, stream_.Next());
      if (entry == nullptr) break;
      const std::string_view path = OrEmpty(archive_entry_pathname(entry));
      if (const absl::Status status = Take(entry, path); !status.ok()) {
        return Annotate(status, fmt::format("entry '{}'", ShortenUtf8(path, kShownPathBytes)));
      }
    }
    RETURN_IF_ERROR(stream_.Drain());
    LayerFacts facts;
    ASSIGN_OR_RETURN(facts.tree, writer_.Finish());
    facts.diff_id = stream_.StreamDigest();
    facts.blob_digest = stream_.BlobDigest();
    facts.entries = entries_;
    facts.padded = stream_.padded();
    for (const auto& [what, count] : left_out_) {
      facts.notes.push_back(fmt::format("left out: {} {}", count, what));
    }
    return facts;
  }

 private:
  absl::Status Take(archive_entry* entry, std::string_view raw_path) {
    if (++entries_ > options_.limits.max_entries) {
      return Exhausted("more than the {} entries allowed: a bomb, or raise max_entries",
                       options_.limits.max_entries);
    }
    ASSIGN_OR_RETURN(const Components path, SplitPath(raw_path));
    if (!path.empty() && path.back().starts_with(kWhiteoutPrefix)) return TakeWhiteout(path);
    const bool hidden = std::any_of(path.begin(), path.end(), [](const std::string& name) {
      return name.starts_with(kWhiteoutPrefix);
    });
    if (hidden) return InvalidInput("below a whiteout");
    if (const char* target = archive_entry_hardlink(entry); target != nullptr) {
      ASSIGN_OR_RETURN(const Components target_path, SplitPath(target));
      return writer_.MakeHardLink(path, target_path);
    }
    return TakeByType(entry, path);
  }

  absl::Status TakeByType(archive_entry* entry, const Components& path) {
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFCHR || type == AE_IFBLK) return TakeDevice(path);
    if (type == AE_IFSOCK) return LeaveOut("sockets");
    ASSIGN_OR_RETURN(Attributes attributes, ReadAttributes(entry, type));
    switch (type) {
      case AE_IFDIR:
        return writer_.MakeFolder(path, attributes);
      case AE_IFLNK:
        return TakeLink(entry, path, attributes);
      case AE_IFIFO:
        return writer_.MakeFifo(path, attributes);
      case AE_IFREG:
        return TakeFile(entry, path, std::move(attributes));
      default:
        return InvalidInput("of unknown type {:o}", static_cast<unsigned>(type));
    }
  }

  absl::Status TakeWhiteout(const Components& path) {
    Components target = path;
    const std::string name = target.back();
    target.pop_back();
    if (name == kOpaqueName) return writer_.MakeOpaque(target);
    if (name.starts_with(kAufsPrefix)) return LeaveOut("files of aufs");
    target.push_back(name.substr(kWhiteoutPrefix.size()));
    if (target.back().empty() || target.back() == "." || target.back() == "..") {
      return InvalidInput("a whiteout of nothing");
    }
    return writer_.MakeWhiteout(target);
  }

  // The sandbox has its own /dev; anywhere else a device is no part of an honest image.
  absl::Status TakeDevice(const Components& path) {
    if (!path.empty() && path.front() == "dev") return LeaveOut("device nodes below /dev");
    if (options_.drop_devices) return LeaveOut("device nodes outside /dev");
    return InvalidInput(
        "a device node outside /dev is refused; to leave such nodes out, import "
        "with drop_devices (--drop-devices)");
  }

  absl::Status TakeLink(archive_entry* entry, const Components& path,
                        const Attributes& attributes) {
    const std::string target(OrEmpty(archive_entry_symlink(entry)));
    if (target.empty()) return InvalidInput("a link to nothing");
    if (target.size() > 4095) return InvalidInput("a link's target of {} bytes", target.size());
    return writer_.MakeLink(path, attributes, target);
  }

  absl::Status TakeFile(archive_entry* entry, const Components& path, Attributes attributes) {
    const int64_t size = archive_entry_size(entry);
    file_bytes_ += size;
    if (size < 0 || file_bytes_ > options_.limits.max_bytes) {
      return Exhausted("files of more than the {} bytes allowed: a bomb, or raise max_bytes",
                       options_.limits.max_bytes);
    }
    return size <= kSmallFile ? TakeSmall(size, path, std::move(attributes))
                              : TakeLarge(size, path, attributes);
  }

  absl::Status TakeSmall(int64_t size, const Components& path, Attributes attributes) {
    std::string content(static_cast<size_t>(size), '\0');
    while (true) {
      ASSIGN_OR_RETURN(const TarStream::Piece piece, stream_.Read());
      if (piece.data.empty()) break;
      RETURN_IF_ERROR(CheckPiece(piece, size));
      piece.data.copy(content.data() + piece.offset, piece.data.size());
    }
    return writer_.MakeFile(path, std::move(attributes), std::move(content));
  }

  absl::Status TakeLarge(int64_t size, const Components& path, const Attributes& attributes) {
    ASSIGN_OR_RETURN(Fd file, writer_.OpenFile(path));
    while (true) {
      ASSIGN_OR_RETURN(TarStream::Piece piece, stream_.Read());
      if (piece.data.empty()) break;
      RETURN_IF_ERROR(CheckPiece(piece, size));
      RETURN_IF_ERROR(WriteAt(file.get(), piece));
    }
    return writer_.CloseFile(path, std::move(file), attributes, size);
  }

  static absl::Status CheckPiece(const TarStream::Piece& piece, int64_t size) {
    const auto bytes = static_cast<int64_t>(piece.data.size());
    if (piece.offset >= 0 && bytes <= size && piece.offset <= size - bytes) {
      return absl::OkStatus();
    }
    return InvalidInput("content at {} in a file of {} bytes", piece.offset, size);
  }

  static absl::Status WriteAt(int fd, TarStream::Piece piece) {
    while (!piece.data.empty()) {
      const ssize_t written = ::pwrite(fd, piece.data.data(), piece.data.size(), piece.offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus("cannot write", "it", errno);
      piece.data.remove_prefix(static_cast<size_t>(written));
      piece.offset += written;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Attributes> ReadAttributes(archive_entry* entry, unsigned type) {
    Attributes attributes;
    attributes.mode = archive_entry_perm(entry) & 07777;
    ASSIGN_OR_RETURN(attributes.uid, Owner(archive_entry_uid(entry), "uid"));
    ASSIGN_OR_RETURN(attributes.gid, Owner(archive_entry_gid(entry), "gid"));
    attributes.mtime = {archive_entry_mtime(entry), archive_entry_mtime_nsec(entry)};
    // What ext4 keeps; a file system clamps differently from another otherwise.
    constexpr time_t kLatest = 15'032'385'535, kEarliest = -2'147'483'648;
    attributes.mtime.tv_sec = std::clamp(attributes.mtime.tv_sec, kEarliest, kLatest);
    attributes.mtime.tv_nsec = std::clamp(attributes.mtime.tv_nsec, 0L, 999'999'999L);
    const bool can_have = type == AE_IFREG || type == AE_IFDIR;
    RETURN_IF_ERROR(ReadEntryXattrs(entry, can_have, &attributes.xattrs));
    return attributes;
  }

  absl::StatusOr<uint32_t> Owner(int64_t id, std::string_view what) {
    if (id >= 0 && id <= kMaxOwner) return static_cast<uint32_t>(id);
    if (options_.squash_owners) {
      ++left_out_[fmt::format("owners beyond {}, made {}", kMaxOwner, kNobody)];
      return kNobody;
    }
    return InvalidInput(
        "its {} {} is not in 0..{}, which is what a sandbox maps; to make such "
        "owners {}, import with squash_owners (--squash-owners)",
        what, id, kMaxOwner, kNobody);
  }

  absl::Status ReadEntryXattrs(archive_entry* entry, bool can_have, std::vector<Xattr>* xattrs) {
    if (archive_entry_acl_types(entry) != 0) ++left_out_["access control lists"];
    archive_entry_xattr_reset(entry);
    const char* name = nullptr;
    const void* value = nullptr;
    size_t size = 0, total = 0;
    while (archive_entry_xattr_next(entry, &name, &value, &size) == ARCHIVE_OK) {
      if (!can_have || name == nullptr || !IsHarmless(name)) {
        ++left_out_["extended attributes other than user.* and security.capability"];
        continue;
      }
      total += size;
      if (xattrs->size() >= kMaxXattrs || total > kMaxXattrBytes) {
        return Exhausted("more than {} extended attributes or {} bytes of them", kMaxXattrs,
                         kMaxXattrBytes);
      }
      xattrs->push_back({name, std::string(static_cast<const char*>(value), size)});
    }
    return absl::OkStatus();
  }

  absl::Status LeaveOut(const std::string& what) {
    ++left_out_[what];
    return absl::OkStatus();
  }

  const UnpackOptions& options_;
  TarStream stream_;
  TreeWriter writer_;
  int64_t entries_ = 0, file_bytes_ = 0;
  std::map<std::string, int64_t> left_out_;
};

}  // namespace

absl::StatusOr<LayerFacts> UnpackLayer(ByteSource source, int root, const UnpackOptions& options) {
  return Unpacker(std::move(source), root, options).Run();
}

}  // namespace orrery::sandbox::image

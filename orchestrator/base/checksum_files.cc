// ChecksumsOfFiles: pieces of files, read by several threads.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

#include "orchestrator/base/checksum.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

constexpr unsigned kMaxThreads = 16;  // enough for any disk and most of the memory's speed

// One file as it is now, read by several threads.
class OpenedFile {
 public:
  explicit OpenedFile(std::string path) : path_(std::move(path)) {}
  ~OpenedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;

  absl::Status Open() {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
    if (fd_ < 0) return ErrnoStatus("cannot open", path_, errno);
    struct stat info;
    if (::fstat(fd_, &info) != 0) return ErrnoStatus("cannot stat", path_, errno);
    if (!S_ISREG(info.st_mode)) return InvalidInput("{}: not a regular file", path_);
    bytes_ = static_cast<uint64_t>(info.st_size);
    pieces_.resize((bytes_ + kChecksumPieceBytes - 1) / kChecksumPieceBytes);
    return absl::OkStatus();
  }

  // Pieces [first, first + kStretch), of any thread. pread and not a map: what a broken disk
  // answers is a status and not a signal.
  absl::Status Read(size_t first) {
    std::vector<std::byte> buffer(kChecksumPieceBytes);
    for (size_t i = first; i < std::min(pieces_.size(), first + kStretch); ++i) {
      const uint64_t begin = i * kChecksumPieceBytes;
      const std::span<std::byte> piece =
          std::span(buffer).first(std::min(kChecksumPieceBytes, bytes_ - begin));
      RETURN_IF_ERROR(Fill(begin, piece));
      pieces_[i] = ChecksumOfPiece(piece);
    }
    return absl::OkStatus();
  }

  // In a row, so that a disk is read forward.
  static constexpr size_t kStretch = 16;

  uint64_t bytes() const { return bytes_; }
  size_t num_pieces() const { return pieces_.size(); }
  // REQUIRES: every piece was read.
  uint64_t checksum() const { return ChecksumOfPieces(pieces_); }

 private:
  absl::Status Fill(uint64_t at, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("cannot read", path_, errno);
      if (n == 0) return InvalidInput("{}: became shorter while it was read", path_);
      to = to.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> pieces_;
};

struct Stretch {
  OpenedFile* file;
  size_t first;
  absl::Status status;
};

std::vector<Stretch> StretchesOf(std::span<const std::unique_ptr<OpenedFile>> files) {
  std::vector<Stretch> all;
  for (const std::unique_ptr<OpenedFile>& file : files) {
    for (size_t i = 0; i < file->num_pieces(); i += OpenedFile::kStretch) {
      all.push_back({file.get(), i, absl::OkStatus()});
    }
  }
  return all;
}

// The first error, by the order of the files.
absl::Status ReadAll(std::span<const std::unique_ptr<OpenedFile>> files) {
  std::vector<Stretch> stretches = StretchesOf(files);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < stretches.size(); i = next++) {
      stretches[i].status = stretches[i].file->Read(stretches[i].first);
    }
  };
  const size_t wanted = std::min<size_t>(std::thread::hardware_concurrency(), kMaxThreads);
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min(wanted, stretches.size()); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  for (const Stretch& stretch : stretches) RETURN_IF_ERROR(stretch.status);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<FileChecksum>> ChecksumsOfFiles(std::span<const std::string> paths) {
  std::vector<std::unique_ptr<OpenedFile>> files;
  for (const std::string& path : paths) {
    files.push_back(std::make_unique<OpenedFile>(path));
    RETURN_IF_ERROR(files.back()->Open());
  }
  RETURN_IF_ERROR(ReadAll(files));
  std::vector<FileChecksum> found;
  for (const auto& file : files) found.push_back({file->bytes(), file->checksum()});
  return found;
}

}  // namespace orrery

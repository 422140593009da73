#include "sandbox/host/loop_images.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kInodeBytes = 256, kOwnInodes = 16, kBlockBytes = 4096;
constexpr int64_t kMinBytes = 1 << 20;

// What the file system takes for itself: inode tables, and bitmaps and descriptors of each group
// of 128 MiB.
int64_t FileBytes(int64_t bytes, int64_t inodes) {
  const int64_t own = inodes * kInodeBytes + bytes / 256 + (2 << 20);
  return (std::max(bytes, kMinBytes) + own + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

absl::Status Format(const std::string& path, int64_t inodes) {
  std::vector<std::string> words = {
      "mkfs.ext4", "-q", "-F", "-b", std::to_string(kBlockBytes), "-I", std::to_string(kInodeBytes),
      "-N", std::to_string(inodes + kOwnInodes), "-m", "0",
      // Nothing of it outlives a crash, and what the kernel would do in the background costs time.
      "-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg", "-E",
      "lazy_itable_init=1,nodiscard,root_owner=0:0", path};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  char path_entry[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
  char* envp[] = {path_entry, nullptr};
  pid_t pid = 0;
  if (const int error = ::posix_spawnp(&pid, "mkfs.ext4", nullptr, nullptr, argv.data(), envp);
      error != 0) {
    return ErrnoStatus("cannot run mkfs.ext4 (apt-get install e2fsprogs) for", path, error);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return Failed("mkfs.ext4 of {} failed (lines above): are {} inodes too many for its size?", path,
                inodes);
}

// What is not a hole, at its place.
absl::Status CopyData(int from, int to, const std::string& path) {
  off_t at = ::lseek(from, 0, SEEK_DATA);
  while (at >= 0) {
    const off_t end = ::lseek(from, at, SEEK_HOLE);
    off_t in = at, out = at;
    while (in < end) {
      const ssize_t n = ::copy_file_range(from, &in, to, &out, static_cast<size_t>(end - in), 0);
      if (n <= 0) return ErrnoStatus("cannot copy a file system to", path, n == 0 ? EIO : errno);
    }
    at = ::lseek(from, end, SEEK_DATA);
  }
  return absl::OkStatus();
}

absl::Status CopySparse(const std::string& source, const std::string& path) {
  const Descriptor from(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  const Descriptor to(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct stat info {};
  if (!from.valid() || ::fstat(from.get(), &info) != 0) {
    return ErrnoStatus("cannot open", source, errno);
  }
  if (!to.valid()) return ErrnoStatus("cannot make", path, errno);
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) return absl::OkStatus();
  if (::ftruncate(to.get(), info.st_size) != 0) return ErrnoStatus("cannot size", path, errno);
  return CopyData(from.get(), to.get(), path);
}

}  // namespace

absl::StatusOr<std::string> LoopImages::Template(int64_t bytes, int64_t inodes) {
  const std::lock_guard lock(mutex_);
  std::string& known = templates_[{bytes, inodes}];
  if (!known.empty()) return known;
  const std::string path = folder_ + fmt::format("/template-{}-{}", bytes, inodes);
  {
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid() || ::ftruncate(file.get(), FileBytes(bytes, inodes)) != 0) {
      return ErrnoStatus("cannot make", path, errno);
    }
  }
  RETURN_IF_ERROR(Format(path, inodes));
  return known = path;
}

absl::Status LoopImages::Make(const Limits& limits, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string source, Template(limits.disk_bytes, limits.inodes));
  return CopySparse(source, path);
}

}  // namespace orrery::sandbox

#include "sandbox/image/content_hash.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "orchestrator/base/file.h"
#include "sandbox/image/digest.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kBlockBytes = 64 << 10;

bool AllZero(std::string_view block) {
  return block.empty() ||
         (block[0] == 0 && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0);
}

std::string_view Bytes(const uint64_t& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

void AddBlock(Sha256Stream* hash, uint64_t number, std::string_view block) {
  if (AllZero(block)) return;
  hash->Update(Bytes(number));
  hash->Update(block);
}

// Reads up to a block; less only at the end of the file.
absl::StatusOr<size_t> ReadBlock(int fd, off_t offset, char* block, const std::string& path) {
  size_t size = 0;
  while (size < kBlockBytes) {
    const ssize_t got =
        ::pread(fd, block + size, kBlockBytes - size, offset + static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("cannot read", path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  return size;
}

}  // namespace

std::string HashContent(std::string_view content) {
  Sha256Stream hash;
  for (size_t begin = 0; begin < content.size(); begin += kBlockBytes) {
    AddBlock(&hash, begin / kBlockBytes, content.substr(begin, kBlockBytes));
  }
  hash.Update(Bytes(content.size()));
  return hash.Hex();
}

absl::StatusOr<std::string> HashFile(int fd, const std::string& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return ErrnoStatus("cannot stat", path, errno);
  Sha256Stream hash;
  std::string block(kBlockBytes, '\0');
  off_t offset = 0;
  while (offset < status.st_size) {
    const off_t data = ::lseek(fd, offset, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // a hole to the end
    if (data > offset) offset = data / kBlockBytes * kBlockBytes;
    const auto size = ReadBlock(fd, offset, block.data(), path);
    if (!size.ok()) return size.status();
    AddBlock(&hash, static_cast<uint64_t>(offset) / kBlockBytes,
             std::string_view(block).substr(0, *size));
    offset += kBlockBytes;
  }
  hash.Update(Bytes(static_cast<uint64_t>(status.st_size)));
  return hash.Hex();
}

}  // namespace orrery::sandbox::image

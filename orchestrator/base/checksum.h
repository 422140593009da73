// A file's checksum: XXH3-64 (xxhash.com) of the little-endian XXH3-64s of its pieces of 1 MiB, so
// that threads can share the reading of a large one. It finds what a disk, a copy or a hand changed
// by mistake, at memory speed; against forgery it is no protection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct XXH3_state_s;

namespace orrery {

constexpr uint64_t kChecksumPieceBytes = uint64_t{1} << 20;

// Bytes in, in order and in portions of any size; one thread.
class Checksum {
 public:
  Checksum();
  void Add(std::span<const std::byte> bytes);
  // Of all that was added so far.
  uint64_t Value() const;
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  using State = std::unique_ptr<XXH3_state_s, Free>;

  State piece_, pieces_;
  uint64_t num_bytes_ = 0;
};

uint64_t ChecksumOf(std::string_view content);
// The same in two steps: each piece of the file, in any order, and all of them.
uint64_t ChecksumOfPiece(std::span<const std::byte> piece);
uint64_t ChecksumOfPieces(std::span<const uint64_t> pieces);

struct FileChecksum {
  uint64_t bytes = 0, checksum = 0;

  bool operator==(const FileChecksum&) const = default;
};
// Of whole files, in their order, read with several threads. The error is the first file's that
// cannot be read.
absl::StatusOr<std::vector<FileChecksum>> ChecksumsOfFiles(std::span<const std::string> paths);

// 16 hexadecimal digits.
std::string ChecksumText(uint64_t checksum);

}  // namespace orrery

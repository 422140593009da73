// A layer's bytes as they lie or come, to its tar stream: plain, gzip (RFC 1952, several members)
// or zstd (RFC 8878, several frames), told apart by their first bytes. Bounds what comes out by
// size and by ratio, so that a compression bomb ends with an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sandbox/image/image.h"

namespace orrery::sandbox::image {

// The next piece, valid until the next call; empty at the end.
using ByteSource = std::function<absl::StatusOr<std::string_view>()>;

// Reads a descriptor, which must outlive it.
ByteSource ReadFrom(int fd, std::string path);
// All of it in one piece; for tests and small things.
ByteSource ReadFrom(std::string_view content);

class Codec;

class Decoder {
 public:
  Decoder(ByteSource source, const UnpackLimits& limits);
  ~Decoder();
  // Replaces `piece` by the next 1 MiB or less of the stream; empty at the end.
  absl::Status Next(std::string* piece);
  int64_t bytes_in() const { return bytes_in_; }
  int64_t bytes_out() const { return bytes_out_; }
  std::string_view format() const { return format_; }  // "tar", "gzip", "zstd" after Next()

 private:
  absl::Status Begin();
  absl::Status Refill();
  absl::Status CheckLimits() const;

  ByteSource source_;
  UnpackLimits limits_;
  std::unique_ptr<Codec> codec_;
  std::string first_;  // bytes read to tell the format
  std::string_view input_;
  std::string_view format_;
  bool begun_ = false, at_end_ = false;
  int64_t bytes_in_ = 0, bytes_out_ = 0;
};

}  // namespace orrery::sandbox::image

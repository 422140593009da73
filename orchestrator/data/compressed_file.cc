#include "orchestrator/data/compressed_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::data {
namespace {

constexpr size_t kChunk = 1 << 18;

absl::Status TooLarge(const std::string& name, size_t max_bytes) {
  return Exhausted("{}: unpacked it has more than {} bytes; split the file", name, max_bytes);
}

absl::Status Truncated(const std::string& name, std::string_view kind, size_t num_bytes) {
  return InvalidInput(
      "{}: the {} data ends too early, after {} bytes; the file is truncated, get "
      "it again",
      name, kind, num_bytes);
}

struct InflateEnd {
  void operator()(z_stream* stream) const {
    inflateEnd(stream);
    delete stream;
  }
};

absl::StatusOr<std::string> UnpackGzip(std::string_view bytes, const std::string& name,
                                       size_t max_bytes) {
  std::unique_ptr<z_stream, InflateEnd> stream(new z_stream{});
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(stream.get(), kGzipOnly) != Z_OK) return Exhausted("{}: no memory", name);
  std::string text;
  size_t consumed = 0;
  bool member_open = true;
  while (consumed < bytes.size() || member_open) {
    const size_t old_size = text.size();
    text.resize(old_size + kChunk);
    const size_t feed = std::min<size_t>(bytes.size() - consumed, kChunk);
    stream->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + consumed));
    stream->avail_in = static_cast<uInt>(feed);
    stream->next_out = reinterpret_cast<Bytef*>(text.data() + old_size);
    stream->avail_out = kChunk;
    const int result = inflate(stream.get(), Z_NO_FLUSH);
    consumed += feed - stream->avail_in;
    text.resize(old_size + kChunk - stream->avail_out);
    if (text.size() > max_bytes) return TooLarge(name, max_bytes);
    if (result == Z_STREAM_END) {
      member_open = false;
      if (consumed < bytes.size()) {
        member_open = true;
        inflateReset(stream.get());
      }
    } else if (result == Z_BUF_ERROR && consumed == bytes.size()) {
      return Truncated(name, "gzip", bytes.size());
    } else if (result != Z_OK) {
      return InvalidInput("{}: broken gzip data at byte {}: {}; get the file again", name, consumed,
                          stream->msg == nullptr ? "no reason given" : stream->msg);
    }
  }
  return text;
}

struct FreeZstd {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

absl::StatusOr<std::string> UnpackZstd(std::string_view bytes, const std::string& name,
                                       size_t max_bytes) {
  const std::unique_ptr<ZSTD_DCtx, FreeZstd> context(ZSTD_createDCtx());
  if (context == nullptr) return Exhausted("{}: no memory", name);
  std::string text;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  while (true) {
    const size_t old_size = text.size();
    text.resize(old_size + kChunk);
    ZSTD_outBuffer out{text.data() + old_size, kChunk, 0};
    const size_t result = ZSTD_decompressStream(context.get(), &out, &in);
    text.resize(old_size + out.pos);
    if (ZSTD_isError(result)) {
      return InvalidInput("{}: broken Zstandard data at byte {}: {}; get the file again", name,
                          in.pos, ZSTD_getErrorName(result));
    }
    if (text.size() > max_bytes) return TooLarge(name, max_bytes);
    const bool all_read = in.pos == in.size;
    if (all_read && result == 0) return text;  // a frame ended with the file
    if (all_read && out.pos < out.size) return Truncated(name, "Zstandard", bytes.size());
  }
}

}  // namespace

absl::StatusOr<std::string> Unpack(std::string bytes, const std::string& name, size_t max_bytes) {
  if (bytes.starts_with("\x1f\x8b")) return UnpackGzip(bytes, name, max_bytes);
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return UnpackZstd(bytes, name, max_bytes);
  if (name.ends_with(".gz") || name.ends_with(".zst")) {
    return InvalidInput("{}: is not compressed as its name says; rename it, or get it again", name);
  }
  if (bytes.size() > max_bytes) return TooLarge(name, max_bytes);
  return bytes;
}

absl::StatusOr<std::string> ReadDataFile(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kMaxDataBytes) return TooLarge(path, kMaxDataBytes);
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  return Unpack(std::move(bytes), path);
}

}  // namespace orrery::data

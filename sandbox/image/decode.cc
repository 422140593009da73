#include "sandbox/image/decode.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox::image {

// Turns input into output; holds the state of one stream.
class Codec {
 public:
  virtual ~Codec() = default;
  // Takes from the front of `input` and fills `output` (its size is the room) as far as it can;
  // returns how many bytes it wrote.
  virtual absl::StatusOr<size_t> Decode(std::string_view* input, std::string* output,
                                        size_t begin) = 0;
  // Whether the input may end here.
  virtual bool complete() const = 0;
};

namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kReadBytes = 256 << 10;
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);
constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);

class PlainCodec : public Codec {
 public:
  absl::StatusOr<size_t> Decode(std::string_view* input, std::string* output,
                                size_t begin) override {
    const size_t size = std::min(input->size(), output->size() - begin);
    std::copy_n(input->data(), size, output->data() + begin);
    input->remove_prefix(size);
    return size;
  }
  bool complete() const override { return true; }
};

class GzipCodec : public Codec {
 public:
  GzipCodec() { CHECK(inflateInit2(&stream_, 15 + 16) == Z_OK); }
  ~GzipCodec() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Decode(std::string_view* input, std::string* output,
                                size_t begin) override {
    if (member_ended_) {
      SkipPadding(input);
      if (input->empty()) return 0;
      CHECK(inflateReset(&stream_) == Z_OK);
      member_ended_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
    stream_.avail_in = static_cast<uInt>(input->size());
    stream_.next_out = reinterpret_cast<Bytef*>(output->data() + begin);
    stream_.avail_out = static_cast<uInt>(output->size() - begin);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    input->remove_prefix(input->size() - stream_.avail_in);
    if (result == Z_STREAM_END) {
      member_ended_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return InvalidInput("broken gzip data: {}",
                          stream_.msg != nullptr ? stream_.msg : "not of its format");
    }
    return output->size() - begin - stream_.avail_out;
  }
  bool complete() const override { return member_ended_; }

 private:
  // Tapes and some tools fill up with zeros behind the last member.
  static void SkipPadding(std::string_view* input) {
    const size_t size = std::min(input->find_first_not_of('\0'), input->size());
    input->remove_prefix(size);
  }

  z_stream stream_ = {};
  bool member_ended_ = false;
};

class ZstdCodec : public Codec {
 public:
  ZstdCodec() : stream_(ZSTD_createDStream(), ZSTD_freeDStream) { CHECK(stream_ != nullptr); }

  absl::StatusOr<size_t> Decode(std::string_view* input, std::string* output,
                                size_t begin) override {
    if (input->empty() && complete_) return 0;  // more would begin a frame
    ZSTD_inBuffer in = {input->data(), input->size(), 0};
    ZSTD_outBuffer out = {output->data() + begin, output->size() - begin, 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
    if (ZSTD_isError(result) != 0) {
      return InvalidInput("broken zstd data: {}", ZSTD_getErrorName(result));
    }
    input->remove_prefix(in.pos);
    complete_ = result == 0;
    return out.pos;
  }
  bool complete() const override { return complete_; }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  bool complete_ = false;
};

}  // namespace

ByteSource ReadFrom(int fd, std::string path) {
  auto buffer = std::make_shared<std::string>(kReadBytes, '\0');
  return [fd, path = std::move(path), buffer]() -> absl::StatusOr<std::string_view> {
    while (true) {
      const ssize_t size = ::read(fd, buffer->data(), buffer->size());
      if (size >= 0) return std::string_view(*buffer).substr(0, static_cast<size_t>(size));
      if (errno != EINTR) return ErrnoStatus("cannot read", path, errno);
    }
  };
}

ByteSource ReadFrom(std::string_view content) {
  return [content]() mutable -> absl::StatusOr<std::string_view> {
    return std::exchange(content, std::string_view());
  };
}

Decoder::Decoder(ByteSource source, const UnpackLimits& limits)
    : source_(std::move(source)), limits_(limits) {}
Decoder::~Decoder() = default;

absl::Status Decoder::Begin() {
  begun_ = true;
  while (first_.size() < kZstdMagic.size()) {
    ASSIGN_OR_RETURN(const std::string_view piece, source_());
    if (piece.empty()) {
      at_end_ = true;
      break;
    }
    first_ += piece;
  }
  bytes_in_ = static_cast<int64_t>(first_.size());
  input_ = first_;
  if (input_.starts_with(kGzipMagic)) {
    codec_ = std::make_unique<GzipCodec>();
    format_ = "gzip";
  } else if (input_.starts_with(kZstdMagic)) {
    codec_ = std::make_unique<ZstdCodec>();
    format_ = "zstd";
  } else {
    codec_ = std::make_unique<PlainCodec>();
    format_ = "tar";
  }
  return absl::OkStatus();
}

absl::Status Decoder::Refill() {
  ASSIGN_OR_RETURN(input_, source_());
  at_end_ = input_.empty();
  bytes_in_ += static_cast<int64_t>(input_.size());
  return absl::OkStatus();
}

absl::Status Decoder::CheckLimits() const {
  if (bytes_out_ > limits_.max_bytes) {
    return Exhausted(
        "unpacks to more than the {} bytes allowed: a compression bomb, or raise "
        "max_bytes",
        limits_.max_bytes);
  }
  if (bytes_out_ > limits_.ratio_free_bytes && bytes_out_ / limits_.max_ratio > bytes_in_) {
    return Exhausted(
        "{} bytes unpack to {}, more than {} times as many: a compression bomb, or "
        "raise max_ratio",
        bytes_in_, bytes_out_, limits_.max_ratio);
  }
  return absl::OkStatus();
}

absl::Status Decoder::Next(std::string* piece) {
  if (!begun_) RETURN_IF_ERROR(Begin());
  piece->resize(kPieceBytes);
  size_t size = 0;
  while (size < piece->size()) {
    // A codec may hold output back with no input left, so it is asked once more at the end.
    if (input_.empty() && !at_end_) RETURN_IF_ERROR(Refill());
    const size_t input_before = input_.size();
    ASSIGN_OR_RETURN(const size_t written, codec_->Decode(&input_, piece, size));
    size += written;
    bytes_out_ += static_cast<int64_t>(written);
    RETURN_IF_ERROR(CheckLimits());
    if (written > 0 || input_.size() < input_before) continue;
    if (!at_end_) return Failed("the {} decoder does not go on", format_);
    if (!codec_->complete()) {
      return absl::DataLossError(
          fmt::format("the {} data is cut off after {} bytes", format_, bytes_in_));
    }
    break;
  }
  piece->resize(size);
  return absl::OkStatus();
}

}  // namespace orrery::sandbox::image

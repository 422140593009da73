#include "orchestrator/run/compressed_lines.h"

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::run {
namespace {

constexpr int kLevel = 3;
// A line is one episode; what claims to be longer is damage or an attack, not a sample.
constexpr size_t kMaxLineBytes = size_t{1} << 30;

}  // namespace

LineCompressor::LineCompressor() : context_(ZSTD_createCCtx(), ZSTD_freeCCtx) {
  CHECK(context_ != nullptr) << "no memory for zstd";
  CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel)));
  CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1)));
}

void LineCompressor::Add(std::string_view line) {
  CHECK(line.find('\n') == std::string_view::npos) << "a line with a line break in it";
  Compress(line, ZSTD_e_continue);
  Compress("\n", ZSTD_e_continue);
}

std::string LineCompressor::Finish() {
  Compress("", ZSTD_e_end);
  return std::move(compressed_);
}

void LineCompressor::Compress(std::string_view content, ZSTD_EndDirective directive) {
  ZSTD_inBuffer in{content.data(), content.size(), 0};
  char buffer[1 << 16];
  while (true) {
    ZSTD_outBuffer out{buffer, sizeof buffer, 0};
    const size_t left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
    CHECK(!ZSTD_isError(left)) << ZSTD_getErrorName(left);
    compressed_.append(buffer, out.pos);
    if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
  }
}

absl::Status ForEachCompressedLine(
    const std::string& path,
    const std::function<absl::Status(int64_t number, std::string_view line)>& use) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  if (context == nullptr) return Exhausted("{}: no memory for zstd", path);
  ZSTD_inBuffer in{file->data(), file->size(), 0};
  std::string pending;  // the begin of a line whose end has not come yet
  int64_t number = 0;
  size_t frame_left = 1;  // 0: at the end of a frame
  char buffer[1 << 16];
  // Output that fills the buffer may be followed by more that zstd holds back.
  bool more = false;
  while (in.pos < in.size || more) {
    ZSTD_outBuffer out{buffer, sizeof buffer, 0};
    frame_left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(frame_left)) {
      return InvalidInput("{}: damaged: {}", path, ZSTD_getErrorName(frame_left));
    }
    more = out.pos == out.size;
    std::string_view rest(buffer, out.pos);
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos;) {
      pending += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      const absl::Status status = use(++number, pending);
      if (!status.ok()) return Annotate(status, fmt::format("{} line {}", path, number));
      pending.clear();
    }
    pending += rest;
    if (pending.size() > kMaxLineBytes) {
      return InvalidInput("{} line {}: longer than 1 GiB", path, number + 1);
    }
  }
  if (frame_left != 0 || !pending.empty()) return InvalidInput("{}: cut off in the middle", path);
  return absl::OkStatus();
}

}  // namespace orrery::run

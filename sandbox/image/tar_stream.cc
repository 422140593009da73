#include "sandbox/image/tar_stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include <utility>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kMaxPieces = 16;  // of 1 MiB
constexpr int64_t kTarBlock = 512;

// In the C locale libarchive leaves the bytes of a name as they are; in a UTF-8 one it would
// normalize them.
class BytesLocale {
 public:
  BytesLocale() : c_(::newlocale(LC_ALL_MASK, "C", nullptr)), previous_(::uselocale(c_)) {}
  ~BytesLocale() {
    ::uselocale(previous_);
    ::freelocale(c_);
  }

 private:
  locale_t c_, previous_;
};

}  // namespace

TarStream::TarStream(ByteSource source, const UnpackLimits& limits,
                     std::function<void(int64_t)> progress)
    : decoder_(
          [this, source = std::move(source)]() -> absl::StatusOr<std::string_view> {
            absl::StatusOr<std::string_view> piece = source();
            if (piece.ok()) blob_hash_.Update(*piece);
            return piece;
          },
          limits),
      progress_(std::move(progress)),
      archive_(archive_read_new()) {
  CHECK(archive_ != nullptr);
  archive_read_support_format_tar(archive_);
  archive_read_support_format_empty(archive_);
  const auto read = [](archive*, void* self, const void** data) -> la_ssize_t {
    auto* stream = static_cast<TarStream*>(self);
    const absl::StatusOr<std::string_view> piece = stream->Take();
    if (!piece.ok()) {
      stream->take_status_ = piece.status();
      return ARCHIVE_FATAL;
    }
    *data = piece->data();
    return static_cast<la_ssize_t>(piece->size());
  };
  thread_ = std::thread([this] { Fetch(); });
  // Fails where the first bytes are no tar; Next() then says so.
  archive_read_open(archive_, this, nullptr, read, nullptr);
}

TarStream::~TarStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  archive_read_free(archive_);
}

void TarStream::Fetch() {
  while (true) {
    std::string piece;
    const absl::Status status = decoder_.Next(&piece);
    if (status.ok()) stream_hash_.Update(piece);
    if (progress_) progress_(decoder_.bytes_in());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || pieces_.size() < kMaxPieces; });
    status_ = status;
    ended_ = !status.ok() || piece.empty();
    if (!ended_) pieces_.push_back(std::move(piece));
    // Some tools (umoci 0.4) forget the padding of the last file and what comes behind it.
    if (const int64_t rest = decoder_.bytes_out() % kTarBlock; status.ok() && ended_ && rest > 0) {
      pieces_.emplace_back(static_cast<size_t>(kTarBlock - rest), '\0');
      padded_ = true;
    }
    changed_.notify_all();
    if (stop_ || ended_) return;
  }
}

absl::StatusOr<std::string_view> TarStream::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !pieces_.empty(); });
  if (pieces_.empty()) {
    if (!status_.ok()) return status_;
    return std::string_view();
  }
  current_ = std::move(pieces_.front());
  pieces_.pop_front();
  changed_.notify_all();
  return current_;
}

absl::Status TarStream::Error(std::string_view what) const {
  if (!take_status_.ok()) return take_status_;
  const char* reason = archive_error_string(archive_);
  return InvalidInput("{}: {}", what, reason != nullptr ? reason : "no reason given");
}

absl::StatusOr<archive_entry*> TarStream::Next() {
  const BytesLocale locale;
  archive_entry* entry = nullptr;
  while (true) {
    const int result = archive_read_next_header(archive_, &entry);
    if (result == ARCHIVE_EOF) return nullptr;
    if (result == ARCHIVE_RETRY) continue;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) return Error("broken tar");
    return entry;
  }
}

absl::StatusOr<TarStream::Piece> TarStream::Read() {
  const void* data = nullptr;
  size_t size = 0;
  int64_t offset = 0;
  int result = ARCHIVE_RETRY;
  // An empty piece may come in the middle, before a hole.
  while (result == ARCHIVE_RETRY ||
         ((result == ARCHIVE_OK || result == ARCHIVE_WARN) && size == 0)) {
    result = archive_read_data_block(archive_, &data, &size, &offset);
  }
  if (result == ARCHIVE_EOF) return Piece();
  if (result != ARCHIVE_OK && result != ARCHIVE_WARN) return Error("broken tar");
  return Piece{{static_cast<const char*>(data), size}, offset};
}

absl::Status TarStream::Drain() {
  while (true) {
    ASSIGN_OR_RETURN(const std::string_view piece, Take());
    if (piece.empty()) return absl::OkStatus();
  }
}

std::string TarStream::StreamDigest() { return std::string(kDigestPrefix) + stream_hash_.Hex(); }
std::string TarStream::BlobDigest() { return std::string(kDigestPrefix) + blob_hash_.Hex(); }

}  // namespace orrery::sandbox::image

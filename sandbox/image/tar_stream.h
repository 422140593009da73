// A tar stream read by libarchive in one thread while another thread fetches, decompresses and
// hashes what comes next. libarchive's own detection of compression is not used: it would unpack
// compressions inside each other without a bound.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/image/decode.h"
#include "sandbox/image/digest.h"

struct archive;
struct archive_entry;

namespace orrery::sandbox::image {

class TarStream {
 public:
  TarStream(ByteSource source, const UnpackLimits& limits,
            std::function<void(int64_t bytes_in)> progress);
  ~TarStream();
  TarStream(const TarStream&) = delete;
  TarStream& operator=(const TarStream&) = delete;

  // The next entry, valid until the next call; null at the end.
  absl::StatusOr<archive_entry*> Next();
  // A piece of the entry's content and where it belongs; empty at its end.
  struct Piece {
    std::string_view data;
    int64_t offset = 0;
  };
  absl::StatusOr<Piece> Read();
  // What is behind the archive's end belongs to its digest too.
  absl::Status Drain();

  // After Drain(): the stream ended inside a block, which zeros filled up. Only a digest can say
  // then whether it is whole.
  bool padded() const { return padded_; }
  std::string StreamDigest();
  std::string BlobDigest();

 private:
  void Fetch();
  absl::StatusOr<std::string_view> Take();
  absl::Status Error(std::string_view what) const;

  Decoder decoder_;
  std::function<void(int64_t)> progress_;
  Sha256Stream stream_hash_, blob_hash_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  bool ended_ = false, stop_ = false, padded_ = false;
  absl::Status status_;  // of the fetching thread

  std::string current_;
  absl::Status take_status_;
  archive* archive_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace orrery::sandbox::image

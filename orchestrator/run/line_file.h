// A file that grows by whole lines and survives kill -9 and a full disk: metrics.jsonl and
// events.jsonl are such files.
//
// A line is there when its '\n' is. Whatever stands after the last '\n' was torn by a crash: Open()
// cuts it off, readers skip it. A failed append is taken back, so that a later one starts clean.
// Not thread-safe; the owner locks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

class LineFile {
 public:
  // Makes the file where it is missing. Cuts off a torn last line.
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // REQUIRES: `line` has no '\n' in it. After an OK the line survives the death of this process;
  // after Sync() that of the machine.
  absl::Status Append(std::string_view line);
  absl::Status Sync();

 private:
  LineFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  absl::Status TakeBack(absl::Status status);

  const std::string path_;
  const int fd_;
  int64_t size_;  // bytes of whole lines
};

// The whole lines of a file, without their '\n'; a torn last line is left out.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// Rewrites the file atomically with the lines that `keep` returns true for. Does not touch it when
// every line stays, nor when `keep` fails for one: the error is the first one's, and has the
// command that leaves out all such lines and keeps the file as it was beside it. Fine where the
// file is missing.
absl::Status KeepLines(const std::string& path,
                       const std::function<absl::StatusOr<bool>(std::string_view)>& keep);

}  // namespace orrery::run

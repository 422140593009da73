// Text files of lines, zstd-compressed: written to memory line by line, read from disk line by
// line, so that a file of any size passes through a fixed amount of memory. The compressed bytes
// depend on the lines alone (one thread, one level, no time stamp); a checksum finds damage.
#pragma once

#include <zstd.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

class LineCompressor {
 public:
  LineCompressor();
  // REQUIRES: `line` has no '\n' in it.
  void Add(std::string_view line);
  // The whole compressed file. Nothing may be added after it.
  std::string Finish();

 private:
  void Compress(std::string_view content, ZSTD_EndDirective directive);

  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context_;
  std::string compressed_;
};

// Calls `use` with each line (number from 1, without '\n'); its first error ends the reading.
// Damaged or cut-off files are errors naming the path.
absl::Status ForEachCompressedLine(
    const std::string& path,
    const std::function<absl::Status(int64_t number, std::string_view line)>& use);

}  // namespace orrery::run

// Keeps the beginning and the end of a stream and counts it: memory is bounded by `keep_bytes`
// however much comes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sandbox/sandbox.h"

namespace orrery::sandbox {

class OutputKeeper {
 public:
  explicit OutputKeeper(int64_t keep_bytes)
      : head_size_(static_cast<size_t>((keep_bytes + 1) / 2)),
        tail_size_(static_cast<size_t>(keep_bytes / 2)) {}

  void Append(std::string_view bytes);
  int64_t total() const { return total_; }
  Output Take();

 private:
  size_t head_size_, tail_size_;
  std::string head_;
  std::string ring_;  // the tail, once full a ring that begins at ring_begin_
  size_t ring_begin_ = 0;
  int64_t total_ = 0;
};

}  // namespace orrery::sandbox

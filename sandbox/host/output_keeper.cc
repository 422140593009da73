#include "sandbox/host/output_keeper.h"

#include <algorithm>

namespace orrery::sandbox {

void OutputKeeper::Append(std::string_view bytes) {
  total_ += static_cast<int64_t>(bytes.size());
  const size_t to_head = std::min(bytes.size(), head_size_ - head_.size());
  head_.append(bytes.substr(0, to_head));
  bytes.remove_prefix(to_head);
  // Of more than the ring holds only the end matters.
  if (bytes.size() > tail_size_) bytes.remove_prefix(bytes.size() - tail_size_);
  const size_t to_grow = std::min(bytes.size(), tail_size_ - ring_.size());
  ring_.append(bytes.substr(0, to_grow));
  bytes.remove_prefix(to_grow);
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), ring_.size() - ring_begin_);
    bytes.copy(ring_.data() + ring_begin_, n);
    ring_begin_ = (ring_begin_ + n) % ring_.size();
    bytes.remove_prefix(n);
  }
}

Output OutputKeeper::Take() {
  std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(ring_begin_), ring_.end());
  Output output{std::move(head_), std::move(ring_), total_};
  *this = OutputKeeper(0);
  return output;
}

}  // namespace orrery::sandbox

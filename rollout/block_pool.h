// Which blocks of a paged KV cache are in use. Blocks are counted references: sequences that share
// a prompt share its blocks. Knows nothing of where keys and values lie. One thread calls.
#pragma once

#include <cstdint>
#include <vector>

namespace orrery::rollout {

class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // A block with one reference, or -1 where none is free.
  int32_t Allocate();
  void Retain(int32_t block);
  void Release(int32_t block);
  int32_t references(int32_t block) const { return references_[block]; }

 private:
  std::vector<int32_t> free_;  // a stack: the lowest block first, at the start
  std::vector<int32_t> references_;
};

}  // namespace orrery::rollout

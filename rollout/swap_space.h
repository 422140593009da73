// Room in the host's memory for KV blocks of what was preempted, and the copies there and back that
// whoever runs the passes has yet to make. Knows nothing of where either memory lies. One thread
// calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout/block_pool.h"

namespace orrery::rollout {

// A block (all layers) to the host's memory, or back.
struct KvSwap {
  int32_t block = 0;
  int32_t host_block = 0;
  bool out = false;  // to the host
  bool operator==(const KvSwap&) const = default;
};

// Where the blocks of a sequence's consecutive positions lie in the host's memory.
struct SavedBlocks {
  std::vector<int32_t> host_blocks;
  int64_t num_positions = 0;  // of the sequence that are computed, those before the blocks included
  bool empty() const { return num_positions == 0; }
};

class SwapSpace {
 public:
  explicit SwapSpace(int64_t num_blocks) : pool_(num_blocks) {}

  // False, and nothing happens, where there is no room. REQUIRES: saved is empty.
  bool Save(std::span<const int32_t> blocks, int64_t num_positions, SavedBlocks* saved);
  // Into as many of `blocks`; saved is empty afterwards.
  void Restore(std::span<const int32_t> blocks, SavedBlocks* saved);
  void Forget(SavedBlocks* saved);

  // The copies since the last call. They are to be made in this order: a block of either memory may
  // be read by one and written by a later one.
  std::vector<KvSwap> TakeSwaps();

  int64_t num_blocks() const { return pool_.num_blocks(); }
  int64_t num_free() const { return pool_.num_free(); }

 private:
  BlockPool pool_;
  std::vector<KvSwap> swaps_;
};

}  // namespace orrery::rollout

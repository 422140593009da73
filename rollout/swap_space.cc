#include "rollout/swap_space.h"

#include <utility>

#include "orchestrator/base/check.h"

namespace orrery::rollout {

bool SwapSpace::Save(std::span<const int32_t> blocks, int64_t num_positions, SavedBlocks* saved) {
  CHECK(saved->empty());
  if (static_cast<int64_t>(blocks.size()) > pool_.num_free()) return false;
  saved->num_positions = num_positions;
  for (const int32_t block : blocks) {
    saved->host_blocks.push_back(pool_.Allocate());
    swaps_.push_back({block, saved->host_blocks.back(), /*out=*/true});
  }
  return true;
}

void SwapSpace::Restore(std::span<const int32_t> blocks, SavedBlocks* saved) {
  CHECK_GE(blocks.size(), saved->host_blocks.size());
  for (size_t i = 0; i < saved->host_blocks.size(); ++i) {
    swaps_.push_back({blocks[i], saved->host_blocks[i], /*out=*/false});
  }
  Forget(saved);
}

// Backwards: so they are taken again in order, and blocks in a row are copied at once.
void SwapSpace::Forget(SavedBlocks* saved) {
  for (auto b = saved->host_blocks.rbegin(); b != saved->host_blocks.rend(); ++b) pool_.Release(*b);
  *saved = {};
}

std::vector<KvSwap> SwapSpace::TakeSwaps() { return std::exchange(swaps_, {}); }

}  // namespace orrery::rollout

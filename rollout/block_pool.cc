#include "rollout/block_pool.h"

#include "orchestrator/base/check.h"

namespace orrery::rollout {

BlockPool::BlockPool(int64_t num_blocks) : references_(static_cast<size_t>(num_blocks), 0) {
  for (int64_t b = num_blocks - 1; b >= 0; --b) free_.push_back(static_cast<int32_t>(b));
}

int32_t BlockPool::Allocate() {
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  references_[block] = 1;
  return block;
}

void BlockPool::Retain(int32_t block) {
  CHECK_GT(references_[block], 0);
  ++references_[block];
}

void BlockPool::Release(int32_t block) {
  CHECK_GT(references_[block], 0);
  if (--references_[block] == 0) free_.push_back(block);
}

}  // namespace orrery::rollout

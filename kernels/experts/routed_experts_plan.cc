#include "kernels/experts/routed_experts_plan.h"

#include <algorithm>

namespace orrery::kernels::cuda {

GroupedTile PlanGrouped(const GroupedProduct& p, const DeviceLimits& limits) {
  const int64_t thin_tiles = (p.gated ? 2 : 1) * p.slots * p.features / 32;
  if (thin_tiles <= 4 * limits.num_sms) return GroupedTile::kThin;
  if (limits.wgmma && p.k % 64 == 0) {  // kernels_bench experts on an H200
    if (p.slots >= 64 * p.num_experts) return GroupedTile::kCluster;
    const int64_t tile_features = p.gated ? 128 : 256;
    const int64_t feature_tiles = (p.features + tile_features - 1) / tile_features;
    const int64_t lists = std::min(p.slots, p.num_experts);  // with rows, at most
    if (lists * feature_tiles >= 3 * limits.num_sms) return GroupedTile::kBlock;
  }
  if (p.slots <= 2 * p.num_experts) return GroupedTile::kFew;
  if (p.slots <= 6 * p.num_experts) return GroupedTile::kSome;
  if (p.slots <= 20 * p.num_experts) return GroupedTile::kMore;
  return GroupedTile::kMany;
}

int64_t GuessedExperts(int64_t slots, int64_t num_experts, int64_t feature_tiles,
                       const DeviceLimits& limits) {
  if (slots < 4 * num_experts) return 0;  // of 128 experts 2 get none of 512 random slots
  return std::min(num_experts, (limits.num_sms + feature_tiles - 1) / feature_tiles);
}

}  // namespace orrery::kernels::cuda

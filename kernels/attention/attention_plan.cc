#include "kernels/attention/attention_plan.h"

#include <algorithm>

namespace orrery::kernels::cuda {
namespace {

// Shorter runs leave most of a tile's tensor-core work idle.
constexpr int64_t kLeastTileRows = 4;

}  // namespace

AttentionPlan PlanAttention(const HeadShape& heads, int64_t rows, int64_t max_position,
                            const DeviceLimits& limits) {
  AttentionPlan plan;
  const int64_t items = rows * heads.num_kv_heads;
  const int64_t chunks = max_position / kChunkTokens + 1;
  // Enough items keep every SM's copies in flight by themselves.
  plan.split = chunks > 1 && items < limits.num_sms && items <= kAttentionCounters;
  plan.num_chunks = plan.split ? chunks : 1;
  plan.whole_chunks = plan.split && items * chunks <= limits.num_sms;
  plan.warpgroup_blocks = limits.wgmma ? limits.num_sms : 0;
  if (plan.split) {
    plan.workspace_bytes =
        4 * (kAttentionCounters + items * chunks * AttentionPartialFloats(heads.head_dim));
  }
  return plan;
}

AttentionDivision DivideRows(std::span<const int32_t> positions,
                             std::span<const int32_t> sequence_of, const HeadShape& heads) {
  AttentionDivision division;
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t most = std::max<int64_t>(kTileQueries / heads.group(), 1);
  for (int64_t first = 0, end = 0; first < rows; first = end) {
    for (end = first + 1; end < rows && end - first < most; ++end) {
      if (sequence_of[end] != sequence_of[first]) break;
      if (positions[end] != positions[end - 1] + 1) break;
    }
    if (positions[first] < 0) {
      end = first + 1;
    } else if (end - first >= std::min(kLeastTileRows, most)) {
      division.tiles.push_back({static_cast<int32_t>(first), static_cast<int32_t>(end - first)});
    } else {
      for (int64_t t = first; t < end; ++t) division.lone_rows.push_back(static_cast<int32_t>(t));
    }
  }
  return division;
}

}  // namespace orrery::kernels::cuda

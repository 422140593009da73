#include "kernels/attention/attention_plan.h"

namespace orrery::kernels::cuda {

AttentionPlan PlanAttention(const HeadShape& heads, int64_t rows, int64_t max_position,
                            const DeviceLimits& limits) {
  AttentionPlan plan;
  const int64_t items = rows * heads.num_kv_heads;
  const int64_t chunks = max_position / kChunkTokens + 1;
  // Enough items keep every SM's copies in flight by themselves.
  plan.split = chunks > 1 && items < limits.num_sms && items <= kAttentionCounters;
  plan.num_chunks = plan.split ? chunks : 1;
  if (plan.split) {
    plan.workspace_bytes =
        4 * (kAttentionCounters + items * chunks * AttentionPartialFloats(heads.head_dim));
  }
  return plan;
}

}  // namespace orrery::kernels::cuda

#include "kernels/experts/norm_route_plan.h"

#include <algorithm>

#include "kernels/cuda/block_residency.h"
#include "kernels/experts/routed_experts_plan.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kMaxBlocksPerSm = 4;  // of 512 threads, the most that a block has
constexpr int64_t kMaxWaves = 2;        // more take longer than the three kernels

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t SharedBytes(int64_t cluster_rows, int64_t d, int64_t experts) {
  const int64_t tiles = DivideUp(DivideUp(experts, 16), kNormRouteBlocks);  // of the first block
  return (16 * tiles + cluster_rows) * (2 * d + 16);
}

// Times that the GPU is filled with clusters.
int64_t Waves(int64_t rows, const NormRoutePlan& plan, const DeviceLimits& limits) {
  const int64_t blocks_per_sm =
      std::min(BlocksPerSm(plan.shared_bytes + kNormRouteStaticBytes, limits), kMaxBlocksPerSm);
  return DivideUp(DivideUp(rows, plan.rows), limits.num_sms / kNormRouteBlocks * blocks_per_sm);
}

}  // namespace

NormRoutePlan PlanNormRoute(DType dtype, int64_t rows, int64_t d, int64_t experts,
                            const DeviceLimits& limits) {
  // Consumer parts (sm_120) have no clusters to speak of.
  const bool has_clusters = limits.architecture >= 90 && limits.architecture < 120;
  const int64_t clusters = limits.num_sms / kNormRouteBlocks;  // with an SM a block
  if (!has_clusters || clusters == 0 || dtype != DType::kBFloat16) return {};
  if (rows < 1 || rows > kMaxNormRouteRows) return {};
  if (d < 16 || d % 16 != 0 || d > kMaxNormRouteWidth) return {};
  if (experts < 2 || experts % 2 != 0 || experts > kMaxExperts) return {};
  NormRoutePlan plan{1, 0};
  while (plan.rows < kMaxNormRouteClusterRows && DivideUp(rows, plan.rows) > clusters)
    plan.rows *= 2;
  plan.shared_bytes = SharedBytes(plan.rows, d, experts);
  if (plan.shared_bytes + kNormRouteStaticBytes > limits.shared_bytes_per_block) return {};
  return Waves(rows, plan, limits) <= kMaxWaves ? plan : NormRoutePlan{};
}

}  // namespace orrery::kernels::cuda

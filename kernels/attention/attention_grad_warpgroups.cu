// The gradient of attention by Hopper's warpgroup products. A warpgroup owns 64 rows of its tile
// (queries for dq, keys for dk and dv) and all sums of them in registers; what it runs over comes
// 64 rows at a time through a ring of stages, copied 16 bytes a thread. Scores and their gradients
// never leave registers: the sums of one product are, packed to bfloat16, the left operand of the
// next.
#include "kernels/attention/attention_grad_keys.cuh"
#include "kernels/attention/attention_grad_queries.cuh"
#include "kernels/cuda/launch.cuh"

namespace orrery::kernels::cuda {
namespace grad_warpgroups {
namespace {

template <int D>
void Run(const Params& params, const AttentionGradPlan& plan, cudaStream_t stream) {
  using Shape = GradShape<D>;
  static const bool allowed = [] {
    AllowSharedBytes(QueryKernel<D>, Shape::kSharedBytes);
    AllowSharedBytes(KeyKernel<D>, Shape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const auto blocks = [&](size_t items) {
    return static_cast<unsigned>(items * params.num_kv_heads);
  };
  Launch(QueryKernel<D>, dim3(blocks(plan.query_tiles.size())), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, params);
  Launch(KeyKernel<D>, dim3(blocks(plan.key_tiles.size())), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, params);
  if (plan.sums.empty()) return;
  Launch(KeySumKernel<D>, dim3(blocks(plan.sums.size()), kSumBlocks), dim3(kSumThreads), 0, stream,
         params);
}

}  // namespace
}  // namespace grad_warpgroups

void AttentionGradByWarpgroups(const AttentionGradParams<BFloat16>& params,
                               const AttentionGradPlan& plan, cudaStream_t stream) {
  if (params.head_dim == 128) return grad_warpgroups::Run<128>(params, plan, stream);
  grad_warpgroups::Run<64>(params, plan, stream);
}

}  // namespace orrery::kernels::cuda

#include "kernels/cuda/launch.cuh"
#include "kernels/experts/route_row.cuh"

namespace orrery::kernels::cuda {
namespace {

// Rows a thread block. Few go one by one to the experts' counters; the counters of 128 experts lie
// on 16 sectors, which many would queue for, so there a block counts for itself first.
constexpr int kWarps = 4, kManyWarps = 32;
constexpr int64_t kManyRows = 2048;

template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    RouteTopKKernel(RouteParams p, Matrix<const float> logits) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t >= p.rows) return;
  const int expert = RouteRow<kPerLane>(p, t, p.positions[t], logits.Row(t));
  if (expert < 0) return;
  PutInList(p.routing, expert, atomicAdd(p.routing.counts + expert, 1),
            t * p.top_k + threadIdx.x % 32);
}

template <int kPerLane>
__global__ void __launch_bounds__(32 * kManyWarps)
    RouteManyTopKKernel(RouteParams p, Matrix<const float> logits) {
  __shared__ int32_t counts[kMaxExperts], first[kMaxExperts];
  LetSuccessorStart();
  for (int e = threadIdx.x; e < p.num_experts; e += 32 * kManyWarps) counts[e] = 0;
  WaitForPredecessor();
  __syncthreads();
  const int64_t t = int64_t{blockIdx.x} * kManyWarps + threadIdx.x / 32;
  const int expert = t < p.rows ? RouteRow<kPerLane>(p, t, p.positions[t], logits.Row(t)) : -1;
  const int32_t place = expert >= 0 ? atomicAdd(counts + expert, 1) : 0;
  __syncthreads();
  for (int e = threadIdx.x; e < p.num_experts; e += 32 * kManyWarps) {
    if (counts[e] > 0) first[e] = atomicAdd(p.routing.counts + e, counts[e]);
  }
  __syncthreads();
  if (expert >= 0) {
    PutInList(p.routing, expert, first[expert] + place, t * p.top_k + threadIdx.x % 32);
  }
}

template <int kPerLane>
void Run(const RouteParams& p, const Matrix<const float>& logits, cudaStream_t stream) {
  const bool many = p.rows >= kManyRows;
  const int warps = many ? kManyWarps : kWarps;
  Launch(many ? RouteManyTopKKernel<kPerLane> : RouteTopKKernel<kPerLane>,
         static_cast<unsigned>(DivideUp(p.rows, warps)), 32 * warps, 0, stream, p, logits);
}

}  // namespace

void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape, const int32_t* positions,
               const ReplayedRouting& replay, const Routing& routing, cudaStream_t stream) {
  CHECK_EQ(router_logits.cols, shape.num_experts);
  if (router_logits.rows == 0) return;
  CHECK(router_logits.dtype == DType::kFloat32);
  const auto logits = AsMatrix<const float>(router_logits);
  const RouteParams p = MakeRouteParams(router_logits.rows, shape, positions, replay, routing);
  if (p.num_experts <= 128) return Run<4>(p, logits, stream);
  if (p.num_experts <= 256) return Run<8>(p, logits, stream);
  Run<16>(p, logits, stream);
}

}  // namespace orrery::kernels::cuda

// A warp routes a row: lane l holds the logits of experts l, l + 32, ..., and slot l's winner.
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/experts/routed_experts_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 32;

struct RouteParams {
  Matrix<const float> logits;
  int64_t rows = 0;
  int num_experts = 0, top_k = 0;
  bool normalise = false;
  const int32_t* positions = nullptr;
  const int32_t* replay = nullptr;
  Routing routing;
};

// The expert of slot `lane`, ties to the lower one.
template <int kPerLane>
__device__ __forceinline__ int TakeTopK(const float (&logits)[kPerLane], const RouteParams& p,
                                        int lane) {
  uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    keys[i] = lane + 32 * i < p.num_experts ? SortKey(logits[i]) : 0;
  }
  int winner = 0;
  for (int s = 0; s < p.top_k; ++s) {
    uint32_t largest = 0;
    int expert = 0;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (keys[i] >= largest) largest = keys[i], expert = lane + 32 * i;
    }
    const uint32_t top = __reduce_max_sync(~0u, largest);
    const int taken = __reduce_min_sync(~0u, largest == top ? expert : kMaxExperts);
    if (lane == s) winner = taken;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (taken == lane + 32 * i) keys[i] = 0;
    }
  }
  return winner;
}

// sum_e exp(logit_e - max) over all experts.
template <int kPerLane>
__device__ __forceinline__ float SumOfAll(const float (&logits)[kPerLane], float max) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum += expf(logits[i] - max);  // 0 past the last expert
  return WarpSum(sum);
}

template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps) RouteTopKKernel(RouteParams p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int lane = threadIdx.x % 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t >= p.rows) return;
  const int64_t slot = t * p.top_k + lane;
  const bool has_slot = lane < p.top_k;
  if (p.positions[t] < 0) {
    if (has_slot) p.routing.experts[slot] = -1, p.routing.weights[slot] = 0;
    return;
  }
  const float* row = p.logits.Row(t);
  float logits[kPerLane], top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    logits[i] = lane + 32 * i < p.num_experts ? row[lane + 32 * i] : -INFINITY;
    top = fmaxf(top, logits[i]);
  }
  int expert;
  if (p.replay != nullptr && p.replay[t * p.top_k] >= 0) {
    expert = has_slot ? p.replay[slot] : 0;
    expert = min(max(expert, 0), p.num_experts - 1);  // a broken record must not write elsewhere
  } else {
    expert = TakeTopK(logits, p, lane);
  }
  const float logit = has_slot ? row[expert] : -INFINITY;
  top = WarpMax(p.normalise ? logit : top);
  const float e = expf(logit - top);
  float sum = 0;
  if (p.normalise) {  // in the order of slots
    for (int s = 0; s < p.top_k; ++s) sum += __shfl_sync(~0u, e, s);
  } else {
    sum = SumOfAll(logits, top);
  }
  if (!has_slot) return;
  p.routing.experts[slot] = expert;
  p.routing.weights[slot] = __fdiv_rn(e, sum);
  const int32_t place = atomicAdd(p.routing.counts + expert, 1);
  if (place < p.routing.capacity) {
    p.routing.slots[expert * p.routing.capacity + place] = static_cast<int32_t>(slot);
  }
}

}  // namespace

void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape, const int32_t* positions,
               const int32_t* replay, const Routing& routing, cudaStream_t stream) {
  CHECK_EQ(router_logits.cols, shape.num_experts);
  CHECK_LE(shape.num_experts, kMaxExperts);
  CHECK_LE(shape.top_k, std::min<int64_t>(kMaxTopK, shape.num_experts));
  CHECK_GE(routing.capacity, router_logits.rows);
  if (router_logits.rows == 0) return;
  RouteParams p;
  CHECK(router_logits.dtype == DType::kFloat32);
  p.logits = AsMatrix<const float>(router_logits);
  p.rows = router_logits.rows;
  p.num_experts = static_cast<int>(shape.num_experts);
  p.top_k = static_cast<int>(shape.top_k);
  p.normalise = shape.normalise;
  p.positions = positions;
  p.replay = replay;
  p.routing = routing;
  auto* kernel = p.num_experts <= 128   ? RouteTopKKernel<4>
                 : p.num_experts <= 256 ? RouteTopKKernel<8>
                                        : RouteTopKKernel<16>;
  Launch(kernel, static_cast<unsigned>(DivideUp(p.rows, kWarps)), 32 * kWarps, 0, stream, p);
}

}  // namespace orrery::kernels::cuda

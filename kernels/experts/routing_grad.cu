// Routing's part of the gradient: lists in one order, and the gradient of the router's logits.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/experts/routed_experts_grad_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kListThreads = 1024, kListWarps = kListThreads / 32;

// A block an expert: each warp counts the expert's slots in its share of all slots, then writes
// them behind those of the warps before it.
__global__ void __launch_bounds__(kListThreads)
    SortListsKernel(Routing routing, int64_t num_slots) {
  __shared__ int counts[kListWarps];
  LetSuccessorStart();
  WaitForPredecessor();
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t share = (num_slots + kListThreads - 1) / kListThreads * 32;
  const int64_t begin = min(warp * share, num_slots), end = min(begin + share, num_slots);
  const auto mine = [&](int64_t base) {
    const int64_t slot = base + lane;
    return __ballot_sync(~0u, slot < end && routing.experts[slot] == expert);
  };
  int count = 0;
#pragma unroll 8
  for (int64_t base = begin; base < end; base += 32) count += __popc(mine(base));
  if (lane == 0) counts[warp] = count;
  __syncthreads();
  int64_t place = 0;
  for (int w = 0; w < warp; ++w) place += counts[w];
  if (threadIdx.x == kListThreads - 1) {
    routing.counts[expert] = static_cast<int32_t>(place + count);
  }
  int32_t* list = routing.slots + expert * routing.capacity;
#pragma unroll 8
  for (int64_t base = begin; base < end; base += 32) {
    const uint32_t found = mine(base);
    const int64_t at = place + __popc(found & ((1u << lane) - 1));
    if (found >> lane & 1 && at < routing.capacity) list[at] = static_cast<int32_t>(base + lane);
    place += __popc(found);
  }
}

constexpr int kWarps = 4;

template <typename T>
struct RouteGradParams {
  Matrix<const float> logits;
  const float* dweights = nullptr;
  const float* weights = nullptr;
  const int32_t* experts = nullptr;
  Matrix<T> dlogits;
  int64_t rows = 0;
  int num_experts = 0, top_k = 0;
  bool normalise = false;
};

// A warp a row, lanes over experts; lane s holds slot s. With w the slots' weights and
// c = sum_s w_s dw_s:
//   normalised    dlogit_e = sum over slots of e of w_s (dw_s - c)
//   otherwise     dlogit_e = sum over slots of e of w_s dw_s - P_e c
// (probabilities of experts that were not taken cancel in a normalised weight).
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) RouteGradKernel(RouteGradParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int lane = threadIdx.x % 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t >= p.rows) return;
  const bool has_slot = lane < p.top_k;
  const int64_t slot = t * p.top_k + lane;
  const int expert = has_slot ? p.experts[slot] : -1;
  const float weight = expert >= 0 ? p.weights[slot] : 0;
  const float dweight = expert >= 0 ? p.dweights[slot] : 0;
  float c = 0;
  for (int s = 0; s < p.top_k; ++s) c += __shfl_sync(~0u, weight * dweight, s);
  const float share = weight * (p.normalise ? dweight - c : dweight);
  const float* logits = p.logits.Row(t);
  float top = 0, scale = 0;  // P_e c = exp(logit_e - top) scale
  if (!p.normalise) {
    top = -INFINITY;
    for (int e = lane; e < p.num_experts; e += 32) top = fmaxf(top, logits[e]);
    top = WarpMax(top);
    float sum = 0;
    for (int e = lane; e < p.num_experts; e += 32) sum += expf(logits[e] - top);
    // A row of padding has c = 0.
    scale = c / WarpSum(sum);
  }
  for (int first = 0; first < p.num_experts; first += 32) {
    const int e = first + lane;
    float sum = 0;
    for (int s = 0; s < p.top_k; ++s) {
      const float other = __shfl_sync(~0u, share, s);
      if (__shfl_sync(~0u, expert, s) == e) sum += other;
    }
    if (e >= p.num_experts) continue;
    if (!p.normalise) sum -= expf(logits[e] - top) * scale;
    p.dlogits.Row(t)[e] = FromFloat<T>(sum);
  }
}

}  // namespace

void SortExpertLists(const Routing& routing, const ExpertsShape& shape, int64_t rows,
                     cudaStream_t stream) {
  CHECK_GE(routing.capacity, rows);
  if (rows == 0) return;
  Launch(SortListsKernel, static_cast<unsigned>(shape.num_experts), kListThreads, 0, stream,
         routing, rows * shape.top_k);
}

void RouteTopKGrad(const TensorView& router_logits, const float* dweights, const Routing& routing,
                   const ExpertsShape& shape, const TensorView& dlogits, cudaStream_t stream) {
  CHECK(router_logits.cols == shape.num_experts && router_logits.dtype == DType::kFloat32);
  CHECK(dlogits.rows == router_logits.rows && dlogits.cols == router_logits.cols);
  CHECK_LE(shape.top_k, 32);
  if (dlogits.rows == 0) return;
  ForDType(dlogits.dtype, [&](auto tag) {
    using T = decltype(tag);
    RouteGradParams<T> p;
    p.logits = AsMatrix<const float>(router_logits);
    p.dweights = dweights;
    p.weights = routing.weights;
    p.experts = routing.experts;
    p.dlogits = AsMatrix<T>(dlogits);
    p.rows = dlogits.rows;
    p.num_experts = static_cast<int>(shape.num_experts);
    p.top_k = static_cast<int>(shape.top_k);
    p.normalise = shape.normalise;
    Launch(RouteGradKernel<T>, static_cast<unsigned>(DivideUp(p.rows, kWarps)), 32 * kWarps, 0,
           stream, p);
  });
}

}  // namespace orrery::kernels::cuda

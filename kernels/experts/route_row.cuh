// The choice of experts for one row, by one warp: lane l holds the logits of experts l, l + 32,
// ..., and slot l's winner. For every kernel that routes: the same logits give the same bits.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/values.cuh"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/experts/routed_experts_plan.h"

namespace orrery::kernels::cuda {

inline constexpr int kMaxTopK = 32;

struct RouteParams {
  int64_t rows = 0;
  int num_experts = 0, top_k = 0;
  bool normalise = false;
  const int32_t* positions = nullptr;
  ReplayedRouting replay;
  Routing routing;
};

__device__ __forceinline__ int LoadId(const ExpertIds& from, int64_t row, int slot) {
  const int64_t at = row * from.row_stride + slot;
  if (from.id_bytes == 1) return reinterpret_cast<const uint8_t*>(from.ids)[at];
  if (from.id_bytes == 2) return reinterpret_cast<const uint16_t*>(from.ids)[at];
  return reinterpret_cast<const int32_t*>(from.ids)[at];
}

__device__ __forceinline__ void StoreId(const ExpertIds& to, int64_t row, int slot, int id) {
  const int64_t at = row * to.row_stride + slot;
  if (to.id_bytes == 1) {
    reinterpret_cast<uint8_t*>(to.ids)[at] = static_cast<uint8_t>(id);
  } else if (to.id_bytes == 2) {
    reinterpret_cast<uint16_t*>(to.ids)[at] = static_cast<uint16_t>(id);
  } else {
    reinterpret_cast<int32_t*>(to.ids)[at] = id;
  }
}

// Whether the warp's replayed experts are its own top k, in any order.
__device__ __forceinline__ bool SameSet(int own, int replayed, int top_k, bool has_slot) {
  bool found = !has_slot;
  for (int s = 0; s < top_k; ++s) found |= __shfl_sync(~0u, own, s) == replayed;
  return __all_sync(~0u, found);
}

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

// Routes row t of logits `row` (in global or shared memory); the expert of slot `lane`, or -1.
// position: of the row. E <= 32 kPerLane; no bit depends on kPerLane.
template <int kPerLane>
__device__ __forceinline__ int RouteRow(const RouteParams& p, int64_t t, int32_t position,
                                        const float* row) {
  const int lane = threadIdx.x % 32;
  const int64_t slot = t * p.top_k + lane;
  const bool has_slot = lane < p.top_k;
  if (position < 0) {
    if (has_slot) p.routing.experts[slot] = -1, p.routing.weights[slot] = 0;
    return -1;
  }
  float logits[kPerLane], top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    logits[i] = lane + 32 * i < p.num_experts ? row[lane + 32 * i] : -INFINITY;
    top = fmaxf(top, logits[i]);
  }
  int expert = 0;
  const bool replays = p.replay.experts.ids != nullptr && LoadId(p.replay.experts, t, 0) >= 0;
  if (!replays || p.replay.differing != nullptr) expert = TakeTopK(logits, p, lane);
  if (replays) {
    const int own = expert;
    expert = has_slot ? LoadId(p.replay.experts, t, lane) : 0;
    expert = min(max(expert, 0), p.num_experts - 1);  // a broken record must not write elsewhere
    if (p.replay.differing != nullptr && !SameSet(own, expert, p.top_k, has_slot) && lane == 0) {
      atomicAdd(p.replay.differing, 1);
    }
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
  if (!has_slot) return -1;
  p.routing.experts[slot] = expert;
  p.routing.weights[slot] = __fdiv_rn(e, sum);
  if (p.routing.record.ids != nullptr) StoreId(p.routing.record, t, lane, expert);
  return expert;
}

__device__ __forceinline__ void PutInList(const Routing& routing, int expert, int32_t place,
                                          int64_t slot) {
  if (place < routing.capacity) {
    routing.slots[expert * routing.capacity + place] = static_cast<int32_t>(slot);
  }
}

inline RouteParams MakeRouteParams(int64_t rows, const ExpertsShape& shape,
                                   const int32_t* positions, const ReplayedRouting& replay,
                                   const Routing& routing) {
  CHECK_LE(shape.num_experts, kMaxExperts);
  CHECK_LE(shape.top_k, std::min<int64_t>(kMaxTopK, shape.num_experts));
  CHECK_GE(routing.capacity, rows);
  RouteParams p;
  p.rows = rows;
  p.num_experts = static_cast<int>(shape.num_experts);
  p.top_k = static_cast<int>(shape.top_k);
  p.normalise = shape.normalise;
  p.positions = positions;
  p.replay = replay;
  p.routing = routing;
  return p;
}

}  // namespace orrery::kernels::cuda

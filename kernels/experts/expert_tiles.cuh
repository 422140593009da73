// The tiles of a grouped product, numbered expert after expert: found on the device from the
// counts, so that no host waits for them. Lives in shared memory.
#pragma once

#include "kernels/experts/routed_experts_plan.h"

namespace orrery::kernels::cuda {

struct ExpertTiles {
  int first[kMaxExperts + 1];  // of each expert; then the number of all

  // By one warp. num_tiles(e): of expert e. Each lane counts those of its share of experts, then a
  // prefix sum.
  template <typename NumTiles>
  __device__ __forceinline__ void Make(int num_experts, int lane, const NumTiles& num_tiles) {
    const int share = (num_experts + 31) / 32;
    const int begin = min(lane * share, num_experts), end = min(begin + share, num_experts);
    int tiles = 0;
    for (int e = begin; e < end; ++e) tiles += num_tiles(e);
    int before = tiles;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += other;
    }
    if (lane == 31) first[num_experts] = before;
    before -= tiles;
    for (int e = begin; e < end; ++e) {
      first[e] = before;
      before += num_tiles(e);
    }
  }

  // first[e] <= t < first[e + 1].
  __device__ __forceinline__ int ExpertOf(int t, int num_experts) const {
    int low = 0, high = num_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= t ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace orrery::kernels::cuda

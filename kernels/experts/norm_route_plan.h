// Whether the fused norm, router and choice of experts (norm_route_cuda.h) serves a layer, and how
// rows are dealt to its clusters: a pure function of the shape and the GPU. With exact numerics no
// choice changes a bit of the result.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_limits.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

inline constexpr int kNormRouteBlocks = 8;  // of a cluster
inline constexpr int kMaxNormRouteClusterRows = 4;
// Up to here it pays in a decode step on an H200 (BENCHMARKS.md): with more rows, the three
// kernels' latencies hide behind one another as well.
inline constexpr int64_t kMaxNormRouteRows = 64;
inline constexpr int64_t kMaxNormRouteWidth = 4096;
inline constexpr int64_t kNormRouteStaticBytes = 12 << 10;  // of shared memory, besides

struct NormRoutePlan {
  int rows = 0;              // of a cluster: 1, 2 or 4; 0: the three kernels one by one
  int64_t shared_bytes = 0;  // of a block: its part of the router, and its cluster's rows

  explicit operator bool() const { return rows > 0; }
};

// rows of width d, in dtype; E experts. Each block takes the norms of all of its cluster's rows, so
// the fewer the better while every cluster finds SMs; and the router is read once a cluster.
NormRoutePlan PlanNormRoute(DType dtype, int64_t rows, int64_t d, int64_t experts,
                            const DeviceLimits& limits);

}  // namespace orrery::kernels::cuda

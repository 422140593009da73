// What stands before the experts of a mixture-of-experts layer, in one kernel for few rows: the
// residual addition and RMSNorm (rms_norm_cuda.h), the router's product (linear_cuda.h) and the
// choice of experts with its lists (routed_experts_cuda.h), which hold the formulas. One by one
// each of the three waits for its launch and for memory longer than it works.
//
// Exact numerics: every value has the bits of AddRmsNorm, Linear and RouteTopK. Fast numerics: the
// router's sums over d are split among warps and added in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/numerics.h"
#include "kernels/experts/norm_route_plan.h"
#include "kernels/experts/routed_experts_cuda.h"

namespace orrery::kernels::cuda {

struct NormRouteArgs {
  TensorView x, delta;  // [T, d] bfloat16
  TensorView norm;      // [1, d]
  float eps = 0;
  TensorView router;    // [E, d]
  TensorView sum, out;  // [T, d]: round(x + delta) (may be x), and its norm
  ExpertsShape shape;
  const int32_t* positions = nullptr;  // [T] as RouteTopK's
  ReplayedRouting replay;
  Routing routing;
};

// REQUIRES: PlanNormRoute takes the shape; rows of all matrices are 16-byte aligned. The router's
// logits are written nowhere.
void NormRoute(const NormRouteArgs& args, const DeviceLimits& limits, cudaStream_t stream,
               Numerics numerics = Numerics::kExact);

}  // namespace orrery::kernels::cuda

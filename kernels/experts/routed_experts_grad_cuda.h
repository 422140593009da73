// The gradient of the mixture-of-experts MLP on a GPU (routed_experts.h has the formulas). Inside,
// rows are sorted by expert, so that the products are dense; what goes in and out is by row and
// slot.
//
//   training forward, for each layer:
//     RouteTopK; SortExpertLists                  lists in one order: sums over them repeat bitwise
//     ExpertsLinear(x, gate_up) -> gate_up        kept; SwiGlu(gate_up) -> hidden
//     ExpertsLinear(hidden, down) -> y            not kept
//   backward: RoutedExpertsGrad, RouteTopKGrad
//
// dweights[slot] = dout . y = (dout W_down) . hidden: the experts' outputs are not needed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_limits.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Writes the lists again, from routing.experts: the same slots, ascending. rows: T.
void SortExpertLists(const Routing& routing, const ExpertsShape& shape, int64_t rows,
                     cudaStream_t stream);

// out[slot] = round(w_e in[slot / slots_per_row]) for each slot of expert e's list: the forward's
// product with no gate, bit for bit ExpertsDown's with slots_per_row 1. w [E n, k], out [T top_k,
// n]; in has one row a slot (slots_per_row 1) or one a token (top_k).
void ExpertsLinear(const TensorView& in, int64_t slots_per_row, const TensorView& w,
                   const ExpertsShape& shape, const Routing& routing, const DeviceLimits& limits,
                   const TensorView& out, cudaStream_t stream);

struct RoutedExpertsGradArgs {
  TensorView dout;                 // [T, d]
  TensorView x;                    // [T, d]
  TensorView gate_up;              // [T top_k, 2 f], the forward's
  TensorView w_gate_up, w_down;    // [E 2 f, d], [E d, f]
  Routing routing;                 // sorted lists
  TensorView dx;                   // [T, d], overwritten
  float* dweights = nullptr;       // [T, top_k], overwritten
  TensorView dw_gate_up, dw_down;  // float32, as the weights; added to
};

// dtype of everything else is one. workspace: 16-byte aligned, one stream at a time.
int64_t RoutedExpertsGradWorkspaceBytes(const ExpertsShape& shape, int64_t rows, DType dtype);
void RoutedExpertsGrad(const RoutedExpertsGradArgs& args, const ExpertsShape& shape,
                       const DeviceLimits& limits, void* workspace, cudaStream_t stream);

// dlogits [T, E], float32 or bfloat16, overwritten; from the router's logits [T, E] float32 and the
// gradient of the slots' weights. Padding rows (expert -1) get zeros.
void RouteTopKGrad(const TensorView& router_logits, const float* dweights, const Routing& routing,
                   const ExpertsShape& shape, const TensorView& dlogits, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

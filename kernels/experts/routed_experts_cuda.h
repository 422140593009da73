// The mixture-of-experts MLP on a GPU (routed_experts.h has the formulas). Rows are never permuted:
// routing leaves, for each expert, the list of its slots (slot = row * top_k + k), and the grouped
// products read rows by that list. The order inside a list is not fixed; no value depends on it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_limits.h"
#include "kernels/experts/routed_experts.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Device arrays of one layer's routing.
struct Routing {
  float* weights = nullptr;    // [T, top_k]
  int32_t* experts = nullptr;  // [T, top_k]
  int32_t* counts = nullptr;   // [E] rows of each expert; zero before RouteTopK
  int32_t* slots = nullptr;    // [E, capacity]; the first counts[e] are expert e's
  int64_t capacity = 0;        // at least T
};

// router_logits [T, E] float32, E <= 512, top_k <= 32. Rows with positions[t] < 0 are padding: they
// go to no expert, their experts are -1 and their weights 0. replay: [T, top_k] ids to use (a
// negative one: this row's own top k), or null.
void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape, const int32_t* positions,
               const int32_t* replay, const Routing& routing, cudaStream_t stream);

// hidden[slot] = round(silu(round(gate_e x)) * round(up_e x)), [T top_k, f]; x [T, d];
// w [E 2 f, d], an expert's gate rows before its up rows.
void ExpertsGateUp(const TensorView& x, const TensorView& w, const ExpertsShape& shape,
                   const Routing& routing, const DeviceLimits& limits, const TensorView& hidden,
                   cudaStream_t stream);

// y[slot] = round(down_e hidden[slot]), [T top_k, d]; w [E d, f]. The weighted sum over a row's
// slots is part of the norm that follows (rms_norm_cuda.h).
void ExpertsDown(const TensorView& hidden, const TensorView& w, const ExpertsShape& shape,
                 const Routing& routing, const DeviceLimits& limits, const TensorView& y,
                 cudaStream_t stream);

}  // namespace orrery::kernels::cuda

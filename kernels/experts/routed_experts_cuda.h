// The mixture-of-experts MLP on a GPU (routed_experts.h has the formulas). Rows are never permuted:
// routing leaves, for each expert, the list of its slots (slot = row * top_k + k), and the grouped
// products read rows by that list. The order inside a list is not fixed; no value depends on it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device_limits.h"
#include "kernels/experts/routed_experts.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Experts of rows as bytes: id s of row t lies at ids + (t * row_stride + s) * id_bytes. A record
// of all layers is [T, layers, top_k]: one layer's part begins at its place in the first row.
struct ExpertIds {
  std::byte* ids = nullptr;  // null: none
  int64_t row_stride = 0;    // in ids
  int id_bytes = 1;          // 1 and 2: unsigned; 4: signed
};

// Device arrays of one layer's routing.
struct Routing {
  float* weights = nullptr;    // [T, top_k]
  int32_t* experts = nullptr;  // [T, top_k]
  int32_t* counts = nullptr;   // [E] rows of each expert; zero before RouteTopK
  int32_t* slots = nullptr;    // [E, capacity]; the first counts[e] are expert e's
  int64_t capacity = 0;        // at least T
  ExpertIds record;            // written too, but for padding
};

// Routing replay.
struct ReplayedRouting {
  ExpertIds experts;             // a negative first id: this row's own top k
  int32_t* differing = nullptr;  // counts rows whose own top k is another set; null: nobody asks

  // Of one layer: [T, top_k], or null.
  static ReplayedRouting Of(const int32_t* ids, int64_t top_k) {
    return {{reinterpret_cast<std::byte*>(const_cast<int32_t*>(ids)), top_k, 4}, nullptr};
  }
};

// router_logits [T, E] float32, E <= 512, top_k <= 32. Rows with positions[t] < 0 are padding: they
// go to no expert, their experts are -1 and their weights 0.
void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape, const int32_t* positions,
               const ReplayedRouting& replay, const Routing& routing, cudaStream_t stream);

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

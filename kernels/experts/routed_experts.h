// The mixture-of-experts MLP of Qwen3-MoE: for each row x [d]
//
//   P = softmax(W_r x) over E in float32;  (P_e, e) = top k of P, ties to the lower expert
//   w_e = P_e / sum of the k P_e  (norm_topk_prob)  or  P_e
//   out = round(sum over the k slots in order of w_e * y_e),  y_e = down_e(swiglu(gate_up_e x))
//
// Routing is split from computing so that recorded routing can be replayed (Routing Replay: indices
// from the record, weights from this router). A row's value depends on its own x alone: every
// expert's rows go through Linear, and slots are summed in order without atomics.
#pragma once

#include <span>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels {

struct ExpertsShape {
  int64_t num_experts = 0;  // E
  int64_t top_k = 0;
  int64_t d = 0;
  int64_t f = 0;          // width of one expert
  bool normalise = true;  // norm_topk_prob
};

// Routing of T rows: slot-major arrays of T * top_k.
struct Routing {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<float> probabilities;  // [T, E], for the gradient
  int64_t num_differing = 0;         // rows whose replayed experts are another set than their top k
};

// router_logits: [T, E] float32. replay: T * top_k expert ids to use instead of the top k, or
// empty; a negative id falls back to the top k for that row.
void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape,
               std::span<const int32_t> replay, Routing* routing);

// Gradient of the logits from that of the slot weights (T * top_k). Overwrites.
void RouteTopKGrad(const Routing& routing, const ExpertsShape& shape,
                   std::span<const float> dweights, const TensorView& dlogits);

// What the forward keeps for the gradient, all rows sorted by expert (then by row, then slot).
struct ExpertsState {
  std::vector<int32_t> order;                // sorted position -> row * top_k + slot
  std::vector<int64_t> first;                // [E + 1] first sorted position of each expert
  std::vector<float> x, gate_up, hidden, y;  // [T k, d], [T k, 2f], [T k, f], [T k, d]
};

// gate_up: E packed weights [2f, d]; down: E packed [d, f].
void RoutedExperts(const TensorView& x, const Routing& routing, const ExpertsShape& shape,
                   std::span<const PackedWeight> gate_up, std::span<const PackedWeight> down,
                   Rounding rounding, ExpertsState* state, const TensorView& out);

// dx is overwritten; dweights (T * top_k) too. dgate_up [E * 2f, d], ddown [E * d, f] are added to.
// gate_up, down: row-major [E * 2f, d] and [E * d, f], not packed.
void RoutedExpertsGrad(const TensorView& dout, const Routing& routing, const ExpertsShape& shape,
                       const TensorView& gate_up, const TensorView& down, const ExpertsState& state,
                       const TensorView& dx, std::span<float> dweights, const TensorView& dgate_up,
                       const TensorView& ddown);

// One row through its experts in double, for tests. Returns the largest sum of absolute values that
// went into an output, by which its rounding error is measured.
double RoutedExpertsReference(const float* x, const ExpertsShape& shape,
                              std::span<const int32_t> experts, const float* weights,
                              const TensorView& gate_up, const TensorView& down, double* out);

}  // namespace orrery::kernels

// The experts' products of training for float32 and for shapes that tensor cores do not take
// (experts_grad_product.cuh has the formulas). For parity, not for speed: a thread an output.
#pragma once

#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// A matrix read by slot: row slot / slots_per_row.
struct SlotMatrix {
  TensorView rows;
  int64_t slots_per_row = 1;
};

// out[slot, n] = sum_k a[row, k] w_e[n, k]; transposed: w_e[k, n].
void ExpertsLinearSimple(const SlotMatrix& a, const TensorView& w, bool transposed,
                         const Routing& routing, const ExpertsShape& shape, const TensorView& out,
                         cudaStream_t stream);
// dw_e[m, n] += sum over the list of a[row, m] b[row, n].
void ExpertsGradWeightSimple(const SlotMatrix& a, const SlotMatrix& b, const Routing& routing,
                             const ExpertsShape& shape, const TensorView& dw, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

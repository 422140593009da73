// The experts' products of training for float32 and for shapes that tensor cores do not take
// (experts_grad_product.cuh has the formulas). For parity, not for speed: a thread an output.
#pragma once

#include "kernels/experts/experts_grad_rows.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// out[slot, n] = sum_k a[slot / slots_per_row, k] w_e[n, k].
void ExpertsForwardSimple(const TensorView& a, int64_t slots_per_row, const TensorView& w,
                          const Routing& routing, const ExpertsShape& shape, const TensorView& out,
                          cudaStream_t stream);
// out[r, n] = sum_k a[r, k] w_e[k, n], of sorted rows that hold a slot.
void ExpertsInputSimple(const TensorView& a, const TensorView& w, const Routing& routing,
                        const SortedRows& rows, const ExpertsShape& shape, const TensorView& out,
                        cudaStream_t stream);
// dw_e[m, n] += sum over the expert's sorted rows of a[r, m] b[r, n].
void ExpertsWeightSimple(const TensorView& a, const TensorView& b, const SortedRows& rows,
                         const ExpertsShape& shape, const TensorView& dw, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

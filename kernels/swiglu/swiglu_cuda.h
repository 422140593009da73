// The gated activation on a GPU (swiglu.h has the formulas) where it is not fused with the product
// before it: the trainer keeps gate and up for the gradient.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// gate_up: [T, 2 f]; out: [T, f], bit for bit what LinearSwiGlu gives. One dtype.
void SwiGlu(const TensorView& gate_up, const TensorView& out, cudaStream_t stream);

// dgate_up [T, 2 f] is overwritten; it may be gate_up. One dtype.
void SwiGluGrad(const TensorView& dy, const TensorView& gate_up, const TensorView& dgate_up,
                cudaStream_t stream);

}  // namespace orrery::kernels::cuda

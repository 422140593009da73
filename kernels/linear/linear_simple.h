// Dense products on a GPU for float32 and for shapes that tensor cores do not take: one thread an
// output, one chain of fused multiply-adds over ascending k. For parity, not for speed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

void LinearSimple(const TensorView& x, const TensorView& w, const TensorView& bias,
                  const TensorView& out, cudaStream_t stream);
void LinearSwiGluSimple(const TensorView& x, const TensorView& w, const TensorView& out,
                        cudaStream_t stream);

}  // namespace orrery::kernels::cuda

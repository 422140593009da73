// The weighted sum of a row's experts as a pass of its own, where no norm follows that could do it
// (rms_norm_cuda.h): the trainer keeps the sum, not the experts' outputs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// out[t] = round(sum_k weights[t, k] * y[t top_k + k]), slots in order, bit for bit what the norm
// adds. y [T top_k, d], out [T, d], one dtype; weights: device float32 [T, top_k].
void CombineExperts(const TensorView& y, const float* weights, int64_t top_k, const TensorView& out,
                    cudaStream_t stream);

}  // namespace orrery::kernels::cuda

// Numbers made on the device: uniform in [low, high), a function of (seed, index).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

void FillUniform(void* data, DType dtype, int64_t n, float low, float high, uint64_t seed,
                 cudaStream_t stream);

}  // namespace orrery::kernels::cuda

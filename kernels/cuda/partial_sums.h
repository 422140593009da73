// The second half of a sum over rows that many thread blocks share: each block leaves one row of
// partial sums, and they are added in one fixed order. Bitwise repeatable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace orrery::kernels::cuda {

// to[i] += sum_p parts[p * stride + i] for i below n.
void AddPartialSums(const float* parts, int64_t num_parts, int64_t stride, int64_t n, float* to,
                    cudaStream_t stream);

}  // namespace orrery::kernels::cuda

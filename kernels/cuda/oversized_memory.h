// Rubin's oversized shared memory: a kernel asks for it once, and its blocks may then have up to
// DeviceLimits::oversized_shared_bytes. That part is compiled only: no such GPU was at hand.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_limits.h"

namespace orrery::kernels {

// Ends the process where the driver does not know the mode (before CUDA 13.4).
void AllowOversizedSharedMemory(cudaFunction_t function);

template <typename Kernel>
int64_t StaticSharedBytes(Kernel kernel) {
  cudaFuncAttributes attributes;
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return static_cast<int64_t>(attributes.sharedSizeBytes);
}

// AllowSharedBytes (launch.cuh) where a block may have more than is usual, at the cost of its L1.
template <typename Kernel>
void AllowPlannedBytes(Kernel kernel, int64_t shared_bytes, const DeviceLimits& limits) {
  if (shared_bytes + StaticSharedBytes(kernel) > limits.shared_bytes_per_block) {
    cudaFunction_t function = nullptr;
    CUDA_CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(kernel)));
    AllowOversizedSharedMemory(function);
  }
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
}

}  // namespace orrery::kernels

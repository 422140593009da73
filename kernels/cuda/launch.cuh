// How every kernel is launched: with programmatic dependent launch, so that it may start while its
// predecessor in the stream drains. Rules that make this safe:
//   - before WaitForPredecessor() a kernel reads weights, its own arguments, and what it can show
//     to be done, nothing else, and writes only registers and shared memory. Done is what lies
//     before a copy, a memset or a graph's launch in the stream (the kernel behind that starts when
//     all before it is done and visible), and what lies before a kernel that lets its successor
//     start only after its own wait, for that successor;
//   - every block of every kernel passes WaitForPredecessor(), also one that has nothing to do:
//     a kernel that ended without waiting would let its successor see unfinished work further back.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"

namespace orrery::kernels {

// Waits until all kernels before this one in the stream are done and their writes visible.
__device__ __forceinline__ void WaitForPredecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// From here on the next kernel may start; it sees our writes only after its own wait.
__device__ __forceinline__ void LetSuccessorStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

// More than 48 KiB of dynamic shared memory have to be asked for once a kernel.
template <typename Kernel>
void AllowSharedBytes(Kernel kernel, size_t shared_bytes) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
}

}  // namespace orrery::kernels

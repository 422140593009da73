// A CUDA error is the world's (a broken or full device, a lost context) and does not heal: every
// later call on that device fails too. CUDA_CHECK ends the process with exit code 1, naming the
// call, its place and CUDA's own words; a running experiment notes it in its journal first
// (orchestrator/base/fatal.h), and `orrery resume` goes on from the last checkpoint.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "orchestrator/base/check.h"
#include "orchestrator/base/fatal.h"

namespace orrery::kernels::cuda {

[[noreturn]] inline void EndOnCudaError(cudaError_t error, const char* call, const char* file,
                                        int line) {
  std::string message = std::string("the GPU failed: ") + cudaGetErrorString(error) + " (" +
                        cudaGetErrorName(error) + ") in " + call + " at " + file + ":" +
                        std::to_string(line);
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      message += "; " + std::to_string(free_bytes >> 20) + " of " +
                 std::to_string(total_bytes >> 20) + " MiB are free";
    }
  }
  EndProcess(message);
}

}  // namespace orrery::kernels::cuda

#define CUDA_CHECK(call)                                                                    \
  do {                                                                                      \
    const cudaError_t cuda_check_error = (call);                                            \
    if (cuda_check_error != cudaSuccess) [[unlikely]] {                                     \
      ::orrery::kernels::cuda::EndOnCudaError(cuda_check_error, #call, __FILE__, __LINE__); \
    }                                                                                       \
  } while (false)

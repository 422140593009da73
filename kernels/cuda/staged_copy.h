// Large copies between the GPU and host memory that is not pinned, in pieces through pinned buffers
// that all CPU threads fill or empty while the copy engine moves the piece before.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace orrery::kernels::cuda {

// After what is on the stream; done when they return.
void CopyToDevice(void* device, const void* host, int64_t bytes, cudaStream_t stream);
void CopyToHost(void* host, const void* device, int64_t bytes, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

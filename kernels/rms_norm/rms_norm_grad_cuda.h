// The gradient of RMSNorm on a GPU (rms_norm.h has the formula).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Bytes of workspace for rows of d.
int64_t RmsNormGradWorkspaceBytes(int64_t rows, int64_t d);

// dy, x, dx: [T, d] and w [1, d], one dtype; dw: float32 [d], added to. accumulate: add to dx, else
// overwrite; dx may be dy. workspace: 16-byte aligned, one stream at a time.
void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, float eps,
                 bool accumulate, const TensorView& dx, float* dw, void* workspace,
                 cudaStream_t stream);

}  // namespace orrery::kernels::cuda

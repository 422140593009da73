// The trainer's side of qk_norm_rope_cuda.h on a GPU: rotated rows to compute attention's gradient
// from, and the gradient of norm and rotation (qk_norm_rope.h has the formulas).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rope/qk_norm_rope_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// out [T, (Hq + 2 Hkv) D]: queries and keys normed and rotated, values as they are. qkv: what the
// projection gave. args.slots is not read; no position is negative.
void QkNormRopeRows(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out,
                    cudaStream_t stream);

// Bytes of workspace of QkNormRopeGrad.
int64_t QkNormRopeGradWorkspaceBytes(const HeadShape& heads);

// dqkv: in, the gradient of QkNormRopeRows' result; out, that of qkv. dq_norm, dk_norm: float32
// [D], added to; read only where args has the norms. workspace: one stream at a time.
void QkNormRopeGrad(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& dqkv,
                    float* dq_norm, float* dk_norm, void* workspace, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

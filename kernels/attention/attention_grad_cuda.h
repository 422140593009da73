// The gradient of causal attention over a packed batch on a GPU (attention.h, AttentionGrad, has
// the meaning). Keys and values are rows of the batch; a shared prompt is computed once, and its
// keys receive the gradients of all sequences that continue it.
//
//   P = softmax(scale q k^T),  delta = dout . out,  dS = P (dout v^T - delta)
//   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dout
//
// P is computed again from q and k; nothing of the forward kernel is needed but `out`. Two kernels:
// one over tiles of queries gives dq, and for each (row, head) the log of its sum and delta; one
// over tiles of keys gives dk and dv, the heads of a group and all sequences summed in one order.
// Where the plan gives keys to several blocks, a third adds their sums.
// Sums in float32; bfloat16: P and dS are rounded to it for the products. No atomics: bitwise
// repeatable.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/attention_grad_plan.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// qkv [T, (Hq + 2 Hkv) D]: rotated queries and keys, values. dout, out: [T, Hq D]. dqkv: as qkv,
// overwritten in the rows of the plan's spans (other rows are left alone). One dtype, the plan's.
// words: plan.Words() on the device. workspace: plan.workspace_bytes, 16-byte aligned, one stream
// at a time.
void AttentionGrad(const TensorView& dout, const TensorView& qkv, const TensorView& out,
                   const HeadShape& heads, float scale, const AttentionGradPlan& plan,
                   const int32_t* words, void* workspace, const TensorView& dqkv,
                   cudaStream_t stream);

}  // namespace orrery::kernels::cuda

// Attention over paged keys and values on a GPU for float32 and for head sizes that the tuned
// kernel does not take (attention_cuda.h has the meaning): any D up to 256. For parity, not speed.
#pragma once

#include "kernels/attention/attention_cuda.h"

namespace orrery::kernels::cuda {

void AttentionSimple(const TensorView& qkv, const HeadShape& heads, float scale,
                     const AttentionRows& rows, const KvBlocks& kv, const TensorView& out,
                     cudaStream_t stream);

}  // namespace orrery::kernels::cuda

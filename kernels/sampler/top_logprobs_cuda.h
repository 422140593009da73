// The n most likely tokens of the rows that SampleTokens has just drawn for (top_logprobs.h).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sampler/sampler_cuda.h"
#include "kernels/sampler/top_logprobs.h"

namespace orrery::kernels::cuda {

// logits, rows, sampler_workspace: as SampleTokens had them, its work done before on this stream.
// workspace: plan.workspace_bytes, 16-byte aligned. out: [rows, n]; of padding and of rows that are
// not finite nothing is written.
void TopLogprobs(const TensorView& logits, const SamplerRow* rows, const void* sampler_workspace,
                 const TopLogprobsPlan& plan, void* workspace, TopLogprob* out,
                 cudaStream_t stream);

}  // namespace orrery::kernels::cuda

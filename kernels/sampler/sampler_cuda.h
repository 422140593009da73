// Draws one token a row of logits on a GPU, for the whole batch in one pass over the logits
// (sampler.h has the definitions). A row is cut into fixed pieces of 1,024 logits; each piece gives
// its maximum, sum of exponentials, and sum for the entropy; the pieces are folded in order, the
// uniform number picks a piece and then the token in it. What a row draws depends on its logits,
// parameters, seed and position alone.
//
// Rows that filter (top-k, top-p, min-p) or carry penalties or banned ids take further passes over
// their own logits.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sampler/sampler.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// One a row, on the device. Ids of a row that penalties read are one list of prompt and response.
struct SamplerRow {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  uint64_t position = 0;         // index of the token in the response
  const int32_t* ids = nullptr;  // prompt ids, then generated ids; read with penalties only
  int32_t num_prompt_ids = 0;
  int32_t num_ids = 0;
  const int32_t* banned_ids = nullptr;
  int32_t num_banned_ids = 0;
  int32_t active = 0;  // 0: padding, nothing is drawn
};

struct SamplerOutput {
  int32_t* token_ids = nullptr;  // [n]
  float* logprobs = nullptr;     // [n]
  float* entropies = nullptr;    // [n]
  int32_t* finite = nullptr;     // [n] 0: logits hold NaN or infinity, nothing was drawn
};

// Bytes of workspace for n rows of a vocabulary.
int64_t SamplerWorkspaceBytes(int64_t n, int64_t vocabulary);

// logits: [n, V] bfloat16 or float32; not changed.
void SampleTokens(const TensorView& logits, const SamplerRow* rows, void* workspace,
                  const SamplerOutput& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

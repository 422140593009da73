// Log-probs and entropies of rows of logits on a GPU, and their gradient (log_softmax.h has the
// formulas): the trainer's side of the sampler. Statistics come from the functions the sampler
// uses (row_statistics.cuh), so equal logits give the sampler's log-prob bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Device arrays, one value a row.
struct TargetScores {
  float* logprobs = nullptr;   // of the target at the temperature
  float* entropies = nullptr;  // nats
  float* maxima = nullptr;     // of the logits; for the gradient
  float* log_sums = nullptr;   // for the gradient
  int32_t* finite = nullptr;   // 0: a logit is NaN or infinite, the rest means nothing
};

// logits: [n, V] bfloat16 or float32; targets: device [n]. temperature 0 stands for 1.
void ScoreTargets(const TensorView& logits, const int32_t* targets, float temperature,
                  const TargetScores& scores, cudaStream_t stream);

// logits become their gradient, in place. dlogprobs, dentropies: device [n].
void LogSoftmaxGrad(const TensorView& logits, const int32_t* targets, float temperature,
                    const TargetScores& scores, const float* dlogprobs, const float* dentropies,
                    cudaStream_t stream);

}  // namespace orrery::kernels::cuda

// Statistics of one row of logits at a sampling temperature, in float32:
//
//   z = logits / T,  log_sum = log(sum_j exp(z_j - max)),  logprob(i) = z_i - max - log_sum
//   entropy = max + log_sum - sum_j p_j z_j                                      (nats)
//
// The sampler and the trainer both take log-probs from here, so equal logits give equal log-probs.
// The sum runs over 16 lanes in a fixed order.
#pragma once

#include <cstdint>

namespace orrery::kernels {

struct LogSoftmaxStats {
  float max = 0;  // of z
  float log_sum = 0;
  float entropy = 0;
  bool finite = true;  // false: a logit is NaN or infinite; the rest means nothing

  // Not inline: a caller's compiler could fuse the product and the subtraction, and sampler and
  // trainer would then differ in the last bit (seen on arm64).
  float Logprob(float logit, float inverse_temperature) const;
};

// exps: n floats that receive exp(z_j - max), or null. May be logits itself.
LogSoftmaxStats LogSoftmax(const float* logits, int64_t n, float inverse_temperature, float* exps);

// dlogits for loss gradients dlogprob (of the target) and dentropy of this row; may alias logits.
//   dz_j = dlogprob * (1[j = target] - p_j) - dentropy * p_j * (log p_j + entropy),  dlogit = dz /
//   T
void LogSoftmaxGrad(const float* logits, int64_t n, float inverse_temperature,
                    const LogSoftmaxStats& stats, int64_t target, float dlogprob, float dentropy,
                    float* dlogits);

// Log-probs of one row in double, for tests; returns the entropy.
double LogSoftmaxReference(const float* logits, int64_t n, double inverse_temperature,
                           double* logprobs);

}  // namespace orrery::kernels

// What a loss sees of one trained sequence: views of per-token arrays, all aligned by position.
//
// The caller owns the arrays. Positions with mask 0 were not sampled (prompt, tool results,
// template) or are not trained; whatever stands there, NaN included, is never read.
#pragma once

#include <cstdint>
#include <span>

namespace orrery::trainer {

struct SequenceView {
  // Log-probs of the token at each position, natural logarithm, unfiltered distribution at the
  // sampling temperature (DESIGN section 5), by who computed them:
  std::span<const float> logp;            // the policy now: what the gradient is taken of
  std::span<const float> old_logp;        // the trainer at the sampling weights; may be empty where
                                          // nothing in the options uses it (plain reinforce, sft)
  std::span<const float> rollout_logp;    // the sampler; may be empty without a correction
  std::span<const float> reference_logp;  // the reference model; may be empty without KL
  std::span<const float> entropy;         // of the policy now; may be empty without entropy bonus
  std::span<const float> advantages;
  std::span<const uint8_t> mask;  // 1: trained
  // Trained tokens of the whole episode, all its sequences: their common denominator.
  int64_t episode_tokens = 0;

  size_t size() const { return logp.size(); }
};

// The mean of x[t] - y[t] over the trained tokens; 0 where there is none.
inline double MaskedMeanDifference(std::span<const float> x, std::span<const float> y,
                                   std::span<const uint8_t> mask) {
  double sum = 0;
  int64_t count = 0;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    sum += static_cast<double>(x[t]) - static_cast<double>(y[t]);
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

}  // namespace orrery::trainer

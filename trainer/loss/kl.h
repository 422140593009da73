// KL of the policy from a reference model, estimated at the sampled tokens, x = logp -
// reference_logp:
//
//   k1 = x          k2 = x^2 / 2          k3 = exp(-x) - 1 + x
//   low_var_kl = k3 with x clamped to +-20 and the value to +-10
//
// k1 and k3 are unbiased for KL(policy || reference) on samples of the policy, k2 is biased but its
// gradient is right on policy. As a loss, the expected gradient of k1 is 0: k1 belongs in the
// reward. `unbiased` multiplies by the ratio r = exp(clamp(logp - old_logp, -20, 20)), through
// which the gradient flows too; low_var_kl's clamp of the value comes after it. Outside a clamp the
// derivative is 0.
//
// Sources: Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html; miles
// loss_hub/math_utils.py, compute_approx_kl; unbiased: DeepSeek-V3.2, arXiv 2512.02556,
// section 3.1.
#pragma once

#include <cstdint>
#include <span>

namespace orrery::trainer {

enum class KlKind : uint8_t { kNone, kK1, kK2, kK3, kLowVar };

struct KlTerm {
  double value = 0;
  double slope = 0;  // d value / d logp
};

KlTerm EstimateKl(KlKind kind, double logp, double reference_logp);

// The same times new / old.
KlTerm EstimateUnbiasedKl(KlKind kind, double logp, double old_logp, double reference_logp);

// KL in the reward: rewards[t] = -coefficient * kl_t at trained tokens, 0 elsewhere; no gradient.
// The episode's reward is added at its last trained token by whoever knows it (REINFORCE++, arXiv
// 2501.03262).
void KlPenaltyRewards(KlKind kind, std::span<const float> old_logp,
                      std::span<const float> reference_logp, std::span<const uint8_t> mask,
                      double coefficient, std::span<double> rewards);

// Discounted returns over the trained tokens: G_t = rewards_t + gamma G_next, next being the
// following trained token, so that what a tool wrote costs no discount. 0 where the mask is 0.
void RewardToGo(std::span<const double> rewards, std::span<const uint8_t> mask, double gamma,
                std::span<double> returns);

}  // namespace orrery::trainer

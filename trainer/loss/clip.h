// The clipped surrogate of PPO, which GRPO, Dr.GRPO, DAPO, RLOO and REINFORCE++ share: they differ
// in advantages and aggregation.
//
//   d = logp - old_logp        r = exp(clamp(d, -20, 20))
//   L1 = -r A                  L2 = -clip(r, 1 - low, 1 + high) A
//   L = max(L1, L2)            with dual clip c > 1 and A < 0: L = min(-c A, max(L1, L2))
//   clipped = [L2 > L1], strictly: on policy r is exactly 1 and nothing is clipped
//
// Sources: PPO, Schulman et al. 2017, arXiv 1707.06347, eq. 7. Asymmetric range ("clip-higher"):
// DAPO, arXiv 2503.14476, section 3.1. Dual clip: Ye et al. 2020, arXiv 1912.09729. Order of steps,
// clamp and strict comparison: miles loss_hub/math_utils.py, compute_policy_loss.
#pragma once

#include "trainer/loss/surrogate.h"

namespace orrery::trainer {

// L and dL/dd of one token. ppo_kl is -d.
TokenTerm ClippedTerm(double log_ratio, double advantage, const ClipRange& range);

class ClippedSurrogate : public Surrogate {
 public:
  explicit ClippedSurrogate(const ClipRange& range) : range_(range) {}
  void Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const override;

 private:
  const ClipRange range_;
};

}  // namespace orrery::trainer

// REINFORCE without a ratio: L = -A logp, dL/dlogp = -A.
//
// With all advantages 1 it is the cross-entropy of supervised training: `orrery sft` uses it with
// aggregation token_mean. old_logp may be empty; where given, ratio and ppo_kl are reported only.
//
// Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist
// reinforcement learning".
#pragma once

#include "trainer/loss/surrogate.h"

namespace orrery::trainer {

class ReinforceSurrogate : public Surrogate {
 public:
  void Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const override;
};

}  // namespace orrery::trainer

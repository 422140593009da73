// CISPO: the importance weight is clipped and held constant, so that no token loses its gradient.
//
//   r = exp(clamp(logp - old_logp, -20, 20))     L = -sg(clip(r, 1 - low, 1 + high)) A logp
//   dL/dlogp = -clip(r, 1 - low, 1 + high) A     clipped = [clip(r) != r]
//
// sg: no gradient. low >= 1 means no lower bound, as the paper runs it. The value of L is of no
// meaning in itself (it is not 0 on policy); its gradient is.
//
// Sources: MiniMax-M1, arXiv 2506.13585, eq. 4 and 5; slime utils/ppo_utils.py, compute_cispo_loss.
#pragma once

#include "trainer/loss/surrogate.h"

namespace orrery::trainer {

class CispoSurrogate : public Surrogate {
 public:
  explicit CispoSurrogate(const ClipRange& range) : range_(range) {}
  void Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const override;

 private:
  const ClipRange range_;
};

}  // namespace orrery::trainer

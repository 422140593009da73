// GSPO: the clipped surrogate with one ratio a sequence.
//
//   d = (1 / n) sum over trained t of (logp_t - old_logp_t)      s = exp(clamp(d, -20, 20))
//   L_t = max(-s A_t, -clip(s, 1 - low, 1 + high) A_t)           for each of the n trained tokens
//   dL/dlogp_j = (1 / n) sum over t of w_t dL_t/dd               w_t: weights of the terms in the
//   loss
//
// The gradient reaches every token through the mean. The range is about 3e-4 and 4e-4, not 0.2:
// a mean over the sequence hardly moves. The sequence is the sample; samples of one episode have
// one ratio each, as in miles.
//
// Sources: Zheng et al. 2025, arXiv 2507.18071, section 4; miles loss_hub/math_utils.py,
// compute_gspo_kl.
#pragma once

#include "trainer/loss/surrogate.h"

namespace orrery::trainer {

class GspoSurrogate : public Surrogate {
 public:
  explicit GspoSurrogate(const ClipRange& range) : range_(range) {}
  void Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const override;
  void Backward(const SequenceView& sequence, std::span<const TokenTerm> terms,
                std::span<const double> weight, std::span<double> dlogp) const override;

 private:
  const ClipRange range_;
};

}  // namespace orrery::trainer

#include "trainer/loss/clip.h"

#include <cmath>

namespace orrery::trainer {

TokenTerm ClippedTerm(double log_ratio, double advantage, const ClipRange& range) {
  TokenTerm term;
  term.ppo_kl = -log_ratio;
  term.ratio = std::exp(ClampLogRatio(log_ratio));
  const double plain = -term.ratio * advantage;
  const double clipped = -range.Clip(term.ratio) * advantage;
  term.clipped = clipped > plain;
  term.loss = term.clipped ? clipped : plain;
  term.slope = term.clipped || LogRatioIsClamped(log_ratio) ? 0 : plain;
  if (range.dual > 0 && advantage < 0 && -range.dual * advantage < term.loss) {
    term.dual_clipped = true;
    term.loss = -range.dual * advantage;
    term.slope = 0;
  }
  return term;
}

void ClippedSurrogate::Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const {
  for (size_t t = 0; t < terms.size(); ++t) {
    if (!sequence.mask[t]) continue;
    const double log_ratio =
        static_cast<double>(sequence.logp[t]) - static_cast<double>(sequence.old_logp[t]);
    terms[t] = ClippedTerm(log_ratio, sequence.advantages[t], range_);
  }
}

}  // namespace orrery::trainer

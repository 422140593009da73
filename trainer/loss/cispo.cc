#include "trainer/loss/cispo.h"

#include <cmath>

namespace orrery::trainer {
namespace {

TokenTerm CispoTerm(double logp, double old_logp, double advantage, const ClipRange& range) {
  TokenTerm term;
  term.ppo_kl = old_logp - logp;
  term.ratio = std::exp(ClampLogRatio(logp - old_logp));
  const double weight = range.Clip(term.ratio);
  term.clipped = weight != term.ratio;
  term.slope = -weight * advantage;
  term.loss = term.slope * logp;
  return term;
}

}  // namespace

void CispoSurrogate::Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const {
  for (size_t t = 0; t < terms.size(); ++t) {
    if (!sequence.mask[t]) continue;
    terms[t] = CispoTerm(sequence.logp[t], sequence.old_logp[t], sequence.advantages[t], range_);
  }
}

}  // namespace orrery::trainer

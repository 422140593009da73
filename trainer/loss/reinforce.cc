#include "trainer/loss/reinforce.h"

#include <cmath>

namespace orrery::trainer {

void ReinforceSurrogate::Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const {
  for (size_t t = 0; t < terms.size(); ++t) {
    if (!sequence.mask[t]) continue;
    const double logp = sequence.logp[t];
    terms[t].slope = -static_cast<double>(sequence.advantages[t]);
    terms[t].loss = terms[t].slope * logp;
    if (sequence.old_logp.empty()) continue;
    terms[t].ppo_kl = static_cast<double>(sequence.old_logp[t]) - logp;
    terms[t].ratio = std::exp(ClampLogRatio(-terms[t].ppo_kl));
  }
}

}  // namespace orrery::trainer

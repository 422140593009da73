#include "trainer/loss/gspo.h"

#include "trainer/loss/clip.h"

namespace orrery::trainer {

void GspoSurrogate::Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const {
  const double log_ratio = MaskedMeanDifference(sequence.logp, sequence.old_logp, sequence.mask);
  for (size_t t = 0; t < terms.size(); ++t) {
    if (sequence.mask[t]) terms[t] = ClippedTerm(log_ratio, sequence.advantages[t], range_);
  }
}

void GspoSurrogate::Backward(const SequenceView& sequence, std::span<const TokenTerm> terms,
                             std::span<const double> weight, std::span<double> dlogp) const {
  double sum = 0;
  int64_t count = 0;
  for (size_t t = 0; t < terms.size(); ++t) {
    if (!sequence.mask[t]) continue;
    sum += weight[t] * terms[t].slope;
    ++count;
  }
  for (size_t t = 0; t < terms.size(); ++t) {
    if (sequence.mask[t]) dlogp[t] += sum / static_cast<double>(count);
  }
}

}  // namespace orrery::trainer

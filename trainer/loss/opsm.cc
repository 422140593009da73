#include "trainer/loss/opsm.h"

namespace orrery::trainer {

int64_t ApplyOpsm(double delta, const SequenceView& sequence, std::span<double> weight) {
  if (delta <= 0) return 0;
  if (MaskedMeanDifference(sequence.old_logp, sequence.logp, sequence.mask) <= delta) return 0;
  int64_t num_masked = 0;
  for (size_t t = 0; t < weight.size(); ++t) {
    if (!sequence.mask[t] || sequence.advantages[t] >= 0) continue;
    weight[t] = 0;
    ++num_masked;
  }
  return num_masked;
}

}  // namespace orrery::trainer

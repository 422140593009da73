// Off-policy sequence masking: where the policy has moved away from what sampled a sequence, its
// bad tokens teach nothing.
//
//   masked_t = [A_t < 0  and  (1 / n) sum over trained s of (old_logp_s - logp_s) > delta]
//
// The policy term of a masked token is multiplied by 0; KL and entropy stay. The indicator has no
// gradient. Sources: DeepSeek-V3.2, arXiv 2512.02556, section 3.1; miles loss_hub/math_utils.py,
// compute_opsm_mask (delta 1e-4).
#pragma once

#include <cstdint>
#include <span>

#include "trainer/loss/sequence.h"

namespace orrery::trainer {

// Sets weight[t] to 0 at masked tokens and returns how many there are. delta 0: off.
int64_t ApplyOpsm(double delta, const SequenceView& sequence, std::span<double> weight);

}  // namespace orrery::trainer

// A surrogate is the part of a policy loss that differs between algorithms: from log-probs and
// advantages to one term a token, before corrections, aggregation, KL and entropy. One algorithm a
// file: clip.h, gspo.h, cispo.h, reinforce.h. Stateless after construction; any thread may call.
#pragma once

#include <algorithm>
#include <span>

#include "trainer/loss/sequence.h"

namespace orrery::trainer {

// Log ratios are clamped to +-20 before they are exponentiated (miles math_utils.py,
// _LOG_RATIO_EXP_CLAMP; verl core_algos.py). The clamp is part of the formula: outside, the ratio
// is a constant and its derivative 0.
inline constexpr double kMaxLogRatio = 20.0;

inline double ClampLogRatio(double x) { return std::clamp(x, -kMaxLogRatio, kMaxLogRatio); }
inline bool LogRatioIsClamped(double x) { return x < -kMaxLogRatio || x > kMaxLogRatio; }

struct TokenTerm {
  double loss = 0;
  // d loss / d x, x being what the surrogate differentiates by: the token's own log-prob, or for
  // GSPO the mean log ratio of its sequence.
  double slope = 0;
  double ratio = 1;   // new / old, as the surrogate uses it (clamped log ratio, not clipped)
  double ppo_kl = 0;  // old - new, as the surrogate uses it, not clamped
  bool clipped = false;
  bool dual_clipped = false;
};

// The interval that ratios are clipped to is [1 - low, 1 + high].
struct ClipRange {
  double low = 0.2;
  double high = 0.28;
  double dual = 0;  // c of dual clip, > 1; 0: off

  double Clip(double ratio) const { return std::clamp(ratio, 1 - low, 1 + high); }
};

class Surrogate {
 public:
  virtual ~Surrogate() = default;

  // Writes terms[t] for every trained token; terms is as long as the sequence.
  virtual void Forward(const SequenceView& sequence, std::span<TokenTerm> terms) const = 0;

  // dlogp[j] += sum over trained t of weight[t] * d terms[t].loss / d logp[j]. As it stands here: a
  // term depends on its own token's log-prob alone.
  virtual void Backward(const SequenceView& sequence, std::span<const TokenTerm> terms,
                        std::span<const double> weight, std::span<double> dlogp) const {
    for (size_t t = 0; t < terms.size(); ++t) {
      if (sequence.mask[t]) dlogp[t] += weight[t] * terms[t].slope;
    }
  }
};

}  // namespace orrery::trainer

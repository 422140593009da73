#include "trainer/loss/kl.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/base/check.h"
#include "trainer/loss/surrogate.h"

namespace orrery::trainer {
namespace {

constexpr double kMaxLowVarKl = 10.0;

// expm1 keeps the value's own precision where x is small: exp(-x) - 1 + x cancels.
KlTerm K3(double x) { return {std::expm1(-x) + x, -std::expm1(-x)}; }

KlTerm BeforeValueClamp(KlKind kind, double x) {
  switch (kind) {
    case KlKind::kNone:
      return {0, 0};
    case KlKind::kK1:
      return {x, 1};
    case KlKind::kK2:
      return {x * x / 2, x};
    case KlKind::kK3:
      return K3(x);
    case KlKind::kLowVar: {
      KlTerm term = K3(ClampLogRatio(x));
      if (LogRatioIsClamped(x)) term.slope = 0;
      return term;
    }
  }
  CHECK(false) << "KL kind " << static_cast<int>(kind);
  return {};
}

KlTerm ClampValue(KlKind kind, const KlTerm& term) {
  if (kind != KlKind::kLowVar || std::abs(term.value) <= kMaxLowVarKl) return term;
  return {std::clamp(term.value, -kMaxLowVarKl, kMaxLowVarKl), 0};
}

}  // namespace

KlTerm EstimateKl(KlKind kind, double logp, double reference_logp) {
  return ClampValue(kind, BeforeValueClamp(kind, logp - reference_logp));
}

KlTerm EstimateUnbiasedKl(KlKind kind, double logp, double old_logp, double reference_logp) {
  const KlTerm plain = BeforeValueClamp(kind, logp - reference_logp);
  const double ratio = std::exp(ClampLogRatio(logp - old_logp));
  const double ratio_slope = LogRatioIsClamped(logp - old_logp) ? 0 : ratio;
  return ClampValue(kind, {ratio * plain.value, ratio * plain.slope + ratio_slope * plain.value});
}

void KlPenaltyRewards(KlKind kind, std::span<const float> old_logp,
                      std::span<const float> reference_logp, std::span<const uint8_t> mask,
                      double coefficient, std::span<double> rewards) {
  CHECK_EQ(old_logp.size(), mask.size());
  CHECK_EQ(reference_logp.size(), mask.size());
  CHECK_EQ(rewards.size(), mask.size());
  for (size_t t = 0; t < mask.size(); ++t) {
    rewards[t] =
        mask[t] ? -coefficient * EstimateKl(kind, old_logp[t], reference_logp[t]).value : 0;
  }
}

void RewardToGo(std::span<const double> rewards, std::span<const uint8_t> mask, double gamma,
                std::span<double> returns) {
  CHECK_EQ(rewards.size(), mask.size());
  CHECK_EQ(returns.size(), mask.size());
  double running = 0;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t]) running = rewards[t] + gamma * running;
    returns[t] = mask[t] ? running : 0;
  }
}

}  // namespace orrery::trainer

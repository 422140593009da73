#include "trainer/loss/mismatch.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/loss/kl.h"

namespace orrery::trainer {

MismatchSums& MismatchSums::operator+=(const MismatchSums& other) {
  kl_sum += other.kl_sum;
  k1_sum += other.k1_sum;
  abs_diff_sum += other.abs_diff_sum;
  mult_prob_error_sum += other.mult_prob_error_sum;
  abs_diff_max = std::max(abs_diff_max, other.abs_diff_max);
  kl_episode_sum += other.kl_episode_sum;
  abs_diff_episode_sum += other.abs_diff_episode_sum;
  num_tokens += other.num_tokens;
  return *this;
}

absl::Status AddMismatch(std::span<const float> train_logp, std::span<const float> rollout_logp,
                         std::span<const uint8_t> mask, int64_t episode_tokens,
                         MismatchSums* sums) {
  CHECK_EQ(train_logp.size(), mask.size());
  CHECK_EQ(rollout_logp.size(), mask.size());
  MismatchSums added;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    if (!std::isfinite(train_logp[t]) || !std::isfinite(rollout_logp[t])) {
      return Failed("token {}: the trainer's log-prob is {} and the sampler's {}", t, train_logp[t],
                    rollout_logp[t]);
    }
    const double d = static_cast<double>(train_logp[t]) - static_cast<double>(rollout_logp[t]);
    added.kl_sum += EstimateKl(KlKind::kLowVar, rollout_logp[t], train_logp[t]).value;
    added.k1_sum -= d;
    added.abs_diff_sum += std::abs(d);
    added.mult_prob_error_sum += std::exp(std::abs(d));
    added.abs_diff_max = std::max(added.abs_diff_max, std::abs(d));
    ++added.num_tokens;
  }
  if (added.num_tokens > 0) {
    CHECK_GE(episode_tokens, added.num_tokens);
    added.kl_episode_sum = added.kl_sum / static_cast<double>(episode_tokens);
    added.abs_diff_episode_sum = added.abs_diff_sum / static_cast<double>(episode_tokens);
  }
  *sums += added;
  return absl::OkStatus();
}

}  // namespace orrery::trainer

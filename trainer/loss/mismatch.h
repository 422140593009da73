// How far trainer and sampler disagree, at the sampled tokens: d = train_logp - rollout_logp,
// train_logp being the trainer's own forward at the weights the token was sampled with, before the
// first optimizer step of the rollout (DESIGN section 5). Never the sampler against itself.
//
//   kl        k3 estimate of KL(rollout || train): exp(d) - 1 - d, d clamped to +-20 and the value
//   to
//             +-10 (miles losses.py, train_rollout_kl; verl rollout_corr/k3_kl; prime-rl
//             mismatch_kl)
//   abs_diff  |d| (miles train_rollout_logprob_abs_diff)
//   k1        -d (verl rollout_corr/kl)
//   mult_prob_error  exp(|d|), not clamped (NeMo-RL token_mult_prob_error; above 1.05 something is
//             wrong)
//
// Each is exactly 0 (or 1) where the two log-probs are bitwise equal. Two means are offered: over
// all trained tokens (num_tokens), and of the token means of the episodes, which is what miles
// reports unless it runs with per-token loss. Unlike miles, which counts NaN as 0, a value that is
// not finite is an error with its position.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace orrery::trainer {

struct MismatchSums {
  double kl_sum = 0;
  double k1_sum = 0;
  double abs_diff_sum = 0;
  double mult_prob_error_sum = 0;
  double abs_diff_max = 0;
  // sum over tokens of value / tokens of the episode: divide by the number of episodes.
  double kl_episode_sum = 0;
  double abs_diff_episode_sum = 0;
  int64_t num_tokens = 0;

  MismatchSums& operator+=(const MismatchSums& other);
};

// Adds the trained tokens of one sequence; on error `sums` is as before. All spans have one length.
absl::Status AddMismatch(std::span<const float> train_logp, std::span<const float> rollout_logp,
                         std::span<const uint8_t> mask, int64_t episode_tokens, MismatchSums* sums);

}  // namespace orrery::trainer

// The loss of a policy and its gradient with respect to the log-prob and the entropy of every
// trained token: a pure function over arrays, in double, without torch.
//
//   loss = sum over sequences and trained tokens t of
//            c k_t (w_t L_t - entropy_coef H_t + kl_coef KL_t)
//
//   L    the algorithm's term          clip.h, gspo.h, cispo.h, reinforce.h
//   w    correction and sequence mask  correction.h, opsm.h (constants: no gradient)
//   k    0 where a correction rejected the token, else 1
//   KL   to the reference              kl.h
//   c    weight of the aggregation     aggregation.h (global denominators)
//
// A call takes one sequence. Loss and gradient of a batch are the sums over its sequences, in
// whatever calls, micro-batches and ranks they were computed: nothing in here looks beyond the
// sequence but the denominators. Order of the steps: miles training_utils/loss_hub/losses.py,
// policy_loss_function.
//
// The optimizer descends: gradients are those of the loss, not of the reward.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/loss/options.h"
#include "trainer/loss/sequence.h"
#include "trainer/loss/surrogate.h"

namespace orrery::trainer {

// Sums over sequences; add them up over calls and ranks.
struct LossSums {
  // Shares of the batch's values: aggregated with the global denominators, rejected tokens left
  // out.
  double loss = 0;
  double pg_loss = 0;
  double kl_loss = 0;       // before kl_coef
  double entropy_loss = 0;  // the entropy, aggregated, before entropy_coef

  // Plain sums over all trained tokens, rejected ones included: divide by num_tokens.
  double entropy_sum = 0;
  double ppo_kl_sum = 0;  // old - new
  double ratio_sum = 0;   // new / old (miles: ois)
  double kl_sum = 0;
  double effective_tokens = 0;  // sum over sequences of (sum r)^2 / sum r^2 (miles: ess_ratio)
  int64_t num_tokens = 0;
  int64_t num_clipped = 0;  // pg_clipfrac
  int64_t num_dual_clipped = 0;
  int64_t num_opsm_masked = 0;
  CorrectionSums correction;

  LossSums& operator+=(const LossSums& other);
};

// Sequences one after the other in flat arrays: sequence i is [offsets[i], offsets[i + 1]).
struct PackedSequences {
  SequenceView tokens;                      // episode_tokens is not read
  std::span<const int64_t> offsets;         // one more than there are sequences, from 0, rising
  std::span<const int64_t> episode_tokens;  // one a sequence

  size_t num_sequences() const { return episode_tokens.size(); }
  SequenceView Sequence(size_t index) const;
};

// Stateless after construction; any number of threads may call.
class PolicyLoss {
 public:
  PolicyLoss(const LossOptions& options, std::unique_ptr<const Surrogate> surrogate)
      : options_(options), surrogate_(std::move(surrogate)) {}

  const LossOptions& options() const { return options_; }

  // Writes d loss / d logp and d loss / d entropy of every token (0 where the mask is 0) and adds
  // to `sums`. Error: a trained token with a value that is not finite, its position named, or a
  // loss that is not finite; the gradients are then undefined and `sums` is as before. REQUIRES:
  // arrays as long as the mask, optional ones as the options need them (dentropy may be empty
  // without an entropy bonus); episode_tokens at least the trained tokens of the sequence.
  absl::Status Evaluate(const SequenceView& sequence, const LossDenominators& denominators,
                        std::span<double> dlogp, std::span<double> dentropy, LossSums* sums) const;
  // The same, gradients rounded to float once at the end.
  absl::Status Evaluate(const SequenceView& sequence, const LossDenominators& denominators,
                        std::span<float> dlogp, std::span<float> dentropy, LossSums* sums) const;

  // Every sequence of a pack, in order; an error names the sequence too.
  absl::Status EvaluatePacked(const PackedSequences& pack, const LossDenominators& denominators,
                              std::span<float> dlogp, std::span<float> dentropy,
                              LossSums* sums) const;

 private:
  const LossOptions options_;
  const std::unique_ptr<const Surrogate> surrogate_;
};

// Error: options that cannot be used (CheckLossOptions).
absl::StatusOr<std::unique_ptr<PolicyLoss>> MakePolicyLoss(const LossOptions& options);

}  // namespace orrery::trainer

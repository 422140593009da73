// From values per token to one number. Every mode is a weighted sum, sum over tokens of c x, whose
// weight c comes from global denominators and never from what happens to be in a micro-batch: so
// loss and gradient do not depend on how a batch is split over calls, micro-batches and ranks.
//
//   mode                      c of a token               known as
//   token_mean                1 / N                      DAPO (arXiv 2503.14476, 3.3), miles
//                                                        --calculate-per-token-loss
//   seq_mean_token_mean       1 / (E max(D, 1))          GRPO (arXiv 2402.03300, eq. 3), miles
//   default seq_mean_token_sum        1 / E                      verl seq_mean_token_sum_norm   1 /
//   (E H)                  Dr.GRPO (arXiv 2503.20783) token_sum                 1 verl
//
// N: trained tokens of the batch. E: its episodes, those without a trained token among them where
// the caller counts them: a dropped episode then shrinks the gradient instead of weighting the
// others up (miles). D: trained tokens of the episode, all its samples. H: a fixed horizon.
// Sources: miles training_utils/cp_utils.py, get_sum_of_sample_mean; verl core_algos.py, agg_loss.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace orrery::trainer {

enum class Aggregation : uint8_t {
  kTokenMean,
  kSeqMeanTokenMean,
  kSeqMeanTokenSum,
  kSeqMeanTokenSumNorm,
  kTokenSum,
};

// Of the batch of one optimizer step, over all ranks.
struct LossDenominators {
  int64_t num_episodes = 0;
  int64_t num_trained_tokens = 0;
  int64_t horizon = 0;  // tokens; seq_mean_token_sum_norm only
  // Mean of the bounded correction weights; used with CorrectionOptions::batch_normalize only.
  double mean_correction_weight = 1;
};

// The weight c. Error: a horizon that is missing. REQUIRES: the counts that the mode divides by are
// positive, the batch having at least the token that is asked for.
absl::StatusOr<double> TokenScale(Aggregation aggregation, const LossDenominators& denominators,
                                  int64_t episode_tokens);

}  // namespace orrery::trainer

#include "trainer/loss/aggregation.h"

#include <algorithm>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

double EpisodeScale(const LossDenominators& denominators) {
  CHECK_GT(denominators.num_episodes, 0);
  return 1.0 / static_cast<double>(denominators.num_episodes);
}

absl::StatusOr<double> HorizonScale(const LossDenominators& denominators) {
  if (denominators.horizon <= 0) {
    return InvalidInput(
        "aggregation seq_mean_token_sum_norm divides by a horizon, which is {}; give the largest "
        "number of response tokens",
        denominators.horizon);
  }
  return EpisodeScale(denominators) / static_cast<double>(denominators.horizon);
}

}  // namespace

absl::StatusOr<double> TokenScale(Aggregation aggregation, const LossDenominators& denominators,
                                  int64_t episode_tokens) {
  switch (aggregation) {
    case Aggregation::kTokenMean:
      CHECK_GT(denominators.num_trained_tokens, 0);
      return 1.0 / static_cast<double>(denominators.num_trained_tokens);
    case Aggregation::kSeqMeanTokenMean:
      return EpisodeScale(denominators) / static_cast<double>(std::max<int64_t>(episode_tokens, 1));
    case Aggregation::kSeqMeanTokenSum:
      return EpisodeScale(denominators);
    case Aggregation::kSeqMeanTokenSumNorm:
      return HorizonScale(denominators);
    case Aggregation::kTokenSum:
      return 1.0;
  }
  CHECK(false) << "aggregation " << static_cast<int>(aggregation);
  return 0.0;
}

}  // namespace orrery::trainer

#include "trainer/loss/aggregation.h"

#include <gtest/gtest.h>

#include <vector>

#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

// Three episodes of token values [1, 2], [3] and [4, 5, 6 | 7]: the last in two samples.
struct Example {
  std::vector<double> values;
  int64_t episode_tokens;
};
const std::vector<Example> kSamples = {{{1, 2}, 2}, {{3}, 1}, {{4, 5, 6}, 4}, {{7}, 4}};
constexpr LossDenominators kDenominators{.num_episodes = 3, .num_trained_tokens = 7, .horizon = 8};

double Aggregate(Aggregation aggregation) {
  double sum = 0;
  for (const Example& sample : kSamples) {
    const double scale = *TokenScale(aggregation, kDenominators, sample.episode_tokens);
    for (const double value : sample.values) sum += scale * value;
  }
  return sum;
}

TEST(AggregationTest, ByHand) {
  EXPECT_DOUBLE_EQ(Aggregate(Aggregation::kTokenMean), 28.0 / 7);
  // Episode means 1.5, 3 and 22 / 4, the samples of an episode sharing its denominator.
  EXPECT_DOUBLE_EQ(Aggregate(Aggregation::kSeqMeanTokenMean), (1.5 + 3 + 5.5) / 3);
  EXPECT_DOUBLE_EQ(Aggregate(Aggregation::kSeqMeanTokenSum), 28.0 / 3);
  EXPECT_DOUBLE_EQ(Aggregate(Aggregation::kSeqMeanTokenSumNorm), 28.0 / 3 / 8);
  EXPECT_DOUBLE_EQ(Aggregate(Aggregation::kTokenSum), 28);
}

TEST(AggregationTest, AMissingHorizonIsAnError) {
  LossDenominators denominators = kDenominators;
  denominators.horizon = 0;
  const auto scale = TokenScale(Aggregation::kSeqMeanTokenSumNorm, denominators, 2);
  ASSERT_FALSE(scale.ok());
  EXPECT_NE(StatusText(scale.status()).find("horizon"), std::string::npos);
  EXPECT_TRUE(TokenScale(Aggregation::kTokenMean, denominators, 2).ok());
}

TEST(AggregationDeathTest, AnEmptyBatchHasNoMean) {
  const LossDenominators none;
  EXPECT_DEATH(TokenScale(Aggregation::kTokenMean, none, 1).status().IgnoreError(),
               "num_trained_tokens");
  EXPECT_DEATH(TokenScale(Aggregation::kSeqMeanTokenMean, none, 1).status().IgnoreError(),
               "num_episodes");
}

}  // namespace
}  // namespace orrery::trainer

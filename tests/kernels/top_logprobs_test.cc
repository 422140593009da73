#include "kernels/sampler/top_logprobs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/sampler/sampler.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

TEST(TopLogprobsTest, AreTheMostLikelyByTheDefinition) {
  Random random(2);
  for (const int64_t vocabulary : {1, 7, 20, 1000, 1025}) {
    std::vector<float> logits = random.Floats(vocabulary, 3);
    if (vocabulary > 100) logits[17] = logits[90] = logits[3] = 20;  // ties
    for (const float temperature : {0.0f, 0.7f, 1.0f, 2.0f}) {
      for (const int64_t n : {1, 5, 20}) {
        if (n > vocabulary) continue;
        std::vector<TopLogprob> top(static_cast<size_t>(n));
        std::vector<int32_t> ids(top.size());
        std::vector<double> expected(top.size());
        TopLogprobs(logits, temperature, n, top.data());
        TopLogprobsReference(logits, temperature, n, ids.data(), expected.data());
        for (size_t i = 0; i < top.size(); ++i) {
          EXPECT_EQ(top[i].token_id, ids[i]);
          // Of a tempered logit, of a sum over 16 lanes, and of the result.
          const double z = 20 / (temperature > 0 ? temperature : 1);
          const double tolerance =
              kFloatEps * (static_cast<double>(vocabulary) / 16 + 16 + 4 * z - expected[i]);
          EXPECT_NEAR(top[i].logprob, expected[i], tolerance);
        }
      }
    }
  }
}

// What greedy draws comes first, with the sampled token's own log-prob to the last bit.
TEST(TopLogprobsTest, TheFirstIsTheGreedyTokenBitForBit) {
  Random random(3);
  std::vector<float> scratch;
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> logits = random.Floats(333, 4);
    SamplerInput input;
    input.logits = logits;
    SamplerParams params;
    params.temperature = 0;
    const SampleResult drawn = SampleToken(input, params, &scratch);
    TopLogprob top;
    TopLogprobs(logits, 0, 1, &top);
    EXPECT_EQ(top.token_id, drawn.token_id);
    EXPECT_EQ(top.logprob, drawn.logprob);
  }
}

TEST(TopLogprobsPlan, CoversEveryPieceOnceOnEveryDevice) {
  for (const DeviceLimits& device : {H200Limits(), B200Limits(), RubinLimits(), DeviceLimits{}}) {
    for (const int64_t rows : {0, 1, 3, 64, 2048, 65535}) {
      for (const int64_t vocabulary : {20, 1024, 1025, 49152, 151936, 262144}) {
        for (const int64_t n : {1, 20}) {
          const TopLogprobsPlan plan = PlanTopLogprobs(rows, vocabulary, n, device);
          EXPECT_EQ(plan.num_pieces, (vocabulary + 1023) / 1024);
          EXPECT_GE(plan.piece_blocks * plan.piece_warps, plan.num_pieces);
          EXPECT_LT((plan.piece_blocks - 1) * plan.piece_warps, plan.num_pieces);
          EXPECT_GE(plan.row_blocks * plan.row_warps, rows);
          EXPECT_LT((plan.row_blocks - 1) * plan.row_warps, std::max<int64_t>(rows, 1));
          EXPECT_GE(plan.piece_warps, 1);
          EXPECT_LE(plan.piece_warps, 8);
          EXPECT_EQ(plan.workspace_bytes, rows * plan.num_pieces * n * 8);
        }
      }
    }
  }
  // One row of a large vocabulary goes to many multiprocessors, many rows go in whole blocks.
  EXPECT_EQ(PlanTopLogprobs(1, 151936, 5, H200Limits()).piece_warps, 1);
  EXPECT_EQ(PlanTopLogprobs(256, 151936, 5, H200Limits()).piece_warps, 8);
}

}  // namespace
}  // namespace orrery::kernels

#include "kernels/sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/head/log_softmax.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/sampler_cases.h"

namespace orrery::kernels {
namespace {

constexpr int64_t kV = 40;

void ExpectDrawsFollow(const std::vector<float>& logits, const SamplerCase& c, uint64_t seed) {
  constexpr int64_t kDraws = 100000;
  std::map<int32_t, int64_t> counts;
  std::vector<float> scratch;
  SamplerInput input;
  input.logits = logits;
  input.prompt_ids = c.prompt;
  input.generated_ids = c.generated;
  input.banned_ids = c.banned;
  input.seed = seed;
  for (int64_t i = 0; i < kDraws; ++i) {
    input.position = static_cast<uint64_t>(i);
    ++counts[SampleToken(input, c.params, &scratch).token_id];
  }
  ExpectCountsFollow(Exact(logits, c), counts, kDraws);
}

TEST(SamplerTest, DrawsFollowTheExactProbabilities) {
  Random random(1);
  const std::vector<float> logits = random.Floats(kV, 3);
  const std::vector<SamplerCase> cases = SamplerCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectDrawsFollow(logits, cases[i], 77 + i);
  }
}

TEST(SamplerTest, GreedyTakesTheLargestTiesToTheLowestId) {
  std::vector<float> scratch;
  SamplerParams params;
  params.temperature = 0;
  const std::vector<float> logits = {1, 5, 2, 5, 5};
  SamplerInput input;
  input.logits = logits;
  EXPECT_EQ(SampleToken(input, params, &scratch).token_id, 1);
  const std::vector<int32_t> banned = {1};
  input.banned_ids = banned;
  EXPECT_EQ(SampleToken(input, params, &scratch).token_id, 3);
  params.repetition_penalty = 3;
  const std::vector<int32_t> seen = {3, 3};
  input.generated_ids = seen;
  const SampleResult result = SampleToken(input, params, &scratch);
  EXPECT_EQ(result.token_id, 4);
  const LogSoftmaxStats stats = LogSoftmax(logits.data(), 5, 1, nullptr);
  EXPECT_EQ(result.logprob, stats.Logprob(5, 1));  // before penalties, at temperature 1
  EXPECT_EQ(result.entropy, stats.entropy);
}

TEST(SamplerTest, LogprobIsThatOfTheUnfilteredTemperedDistribution) {
  Random random(2);
  std::vector<float> scratch;
  const std::vector<float> logits = random.Floats(1000, 4);
  const std::vector<int32_t> seen = {1, 2, 3}, banned = {9};
  for (const float temperature : {1.0f, 0.7f, 2.0f}) {
    const LogSoftmaxStats stats = LogSoftmax(logits.data(), 1000, 1 / temperature, nullptr);
    SamplerParams params{temperature, 50, 0.9f, 0.01f, 1.3f, 0.5f};
    for (uint64_t position = 0; position < 50; ++position) {
      SamplerInput input;
      input.logits = logits;
      input.prompt_ids = seen;
      input.generated_ids = seen;
      input.banned_ids = banned;
      input.seed = 5;
      input.position = position;
      const SampleResult result = SampleToken(input, params, &scratch);
      EXPECT_EQ(result.logprob, stats.Logprob(logits[result.token_id], 1 / temperature));
      EXPECT_EQ(result.entropy, stats.entropy);
      EXPECT_EQ(SampleToken(input, params, &scratch).token_id, result.token_id);
    }
  }
}

TEST(SamplerTest, NothingIsDrawnFromWhatIsNotFinite) {
  std::vector<float> scratch;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits = {1, bad, 2};
    SamplerInput input;
    input.logits = logits;
    for (const float temperature : {0.0f, 1.0f}) {
      SamplerParams params;
      params.temperature = temperature;
      EXPECT_FALSE(SampleToken(input, params, &scratch).finite);
    }
  }
}

TEST(SamplerTest, IdsBeyondTheVocabularyAreNoBans) {
  std::vector<float> scratch;
  const std::vector<float> logits = {1, 2, 3};
  const std::vector<int32_t> banned = {2, 3, 1 << 30, -5};
  SamplerInput input;
  input.logits = logits;
  input.banned_ids = banned;
  for (const float temperature : {0.0f, 1.0f}) {
    SamplerParams params;
    params.temperature = temperature;
    for (input.position = 0; input.position < 20; ++input.position) {
      EXPECT_LT(SampleToken(input, params, &scratch).token_id, 2);
    }
  }
}

// The last id of a large vocabulary of mostly impossible ids is not drawn by rounding.
TEST(SamplerTest, ImpossibleIdsAreNeverDrawn) {
  std::vector<float> scratch, logits(5000, -500.0f);
  logits[700] = 10;
  logits[3000] = 9;
  SamplerInput input;
  input.logits = logits;
  for (input.position = 0; input.position < 3000; ++input.position) {
    const int32_t id = SampleToken(input, {}, &scratch).token_id;
    EXPECT_TRUE(id == 700 || id == 3000) << id;
  }
}

}  // namespace
}  // namespace orrery::kernels

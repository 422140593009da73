#include "kernels/sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/head/log_softmax.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

constexpr int64_t kV = 40;

struct SamplerCase {
  SamplerParams params;
  std::vector<int32_t> prompt, generated, banned;
};

// The distribution that the draw must have, by the definition, in double.
std::vector<double> Exact(const std::vector<float>& logits, const SamplerCase& c) {
  std::vector<double> z(logits.begin(), logits.end());
  std::vector<int32_t> seen = c.prompt;
  seen.insert(seen.end(), c.generated.begin(), c.generated.end());
  for (int32_t id = 0; id < kV; ++id) {
    const auto in = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    const double r = c.params.repetition_penalty;
    if (in(seen)) z[id] = z[id] > 0 ? z[id] / r : z[id] * r;
    if (in(c.generated)) z[id] -= c.params.presence_penalty;
  }
  std::vector<double> p(kV);
  for (int64_t i = 0; i < kV; ++i) p[i] = std::exp(z[i] / c.params.temperature);
  for (const int32_t id : c.banned) p[id] = 0;
  std::vector<int32_t> order(kV);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[a] > p[b]; });
  size_t keep = c.params.top_k > 0 ? std::min<size_t>(kV, c.params.top_k) : kV;
  double total = 0, sum = 0;
  for (size_t i = 0; i < keep; ++i) total += p[order[i]];
  for (size_t i = 0; i < keep && c.params.top_p < 1; ++i) {
    sum += p[order[i]];
    if (sum >= c.params.top_p * total) keep = i + 1;
  }
  while (keep > 1 && p[order[keep - 1]] < c.params.min_p * p[order[0]]) --keep;
  for (size_t i = keep; i < order.size(); ++i) p[order[i]] = 0;
  const double kept = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= kept;
  return p;
}

void ExpectDrawsFollow(const std::vector<float>& logits, const SamplerCase& c, uint64_t seed) {
  constexpr int64_t kDraws = 100000;
  const std::vector<double> p = Exact(logits, c);
  std::vector<int64_t> counts(kV);
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
  // Pearson's statistic over ids that are expected 5 times or more, the others as one.
  double chi = 0, rest = 0, rest_count = 0;
  int cells = 0;
  const auto add = [&](double expected, double count) {
    chi += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (int64_t i = 0; i < kV; ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "id " << i;
    } else if (p[i] * kDraws < 5) {
      rest += p[i] * kDraws, rest_count += static_cast<double>(counts[i]);
    } else {
      add(p[i] * kDraws, static_cast<double>(counts[i]));
    }
  }
  if (rest > 1) add(rest, rest_count);
  // Mean cells - 1, variance twice that; six standard deviations.
  const double freedom = std::max(cells - 1, 1);
  EXPECT_LT(chi, freedom + 6 * std::sqrt(2 * freedom) + 6);
}

TEST(SamplerTest, DrawsFollowTheExactProbabilities) {
  Random random(1);
  const std::vector<float> logits = random.Floats(kV, 3);
  std::vector<SamplerCase> cases(9);
  cases[1].params.temperature = 0.6f;
  cases[2].params.top_k = 7;
  cases[3].params.top_p = 0.8f;
  cases[4].params.min_p = 0.1f;
  cases[5].params.repetition_penalty = 1.7f;
  cases[5].prompt = {0, 1, 2, 3, 3, 3};
  cases[5].generated = {3, 4, 5};
  cases[6].params.presence_penalty = 1.5f;
  cases[6].prompt = {0, 1};  // not counted
  cases[6].generated = {7, 7, 8, 9};
  cases[7].banned = {3, 9, 20, 39};
  cases[8].params = {0.8f, 20, 0.9f, 0.02f, 1.2f, 0.3f};
  cases[8].prompt = {1, 2};
  cases[8].generated = {5, 6, 6};
  cases[8].banned = {11};
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

// The most likely tokens on a GPU against the definition, beside what the sampler drew.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/sampler/top_logprobs_cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

class CudaTopLogprobsTest : public CudaTest {};

struct Result {
  std::vector<TopLogprob> top;
  std::vector<int32_t> tokens, finite;
  std::vector<float> logprobs;
};

Result TopOf(const TensorView& logits, const std::vector<SamplerRow>& rows, int64_t n) {
  const DeviceArray<SamplerRow> device_rows(rows);
  const DeviceArray<uint8_t> workspace(SamplerWorkspaceBytes(logits.rows, logits.cols));
  const DeviceArray<int32_t> tokens(logits.rows), finite(logits.rows);
  const DeviceArray<float> logprobs(logits.rows), entropies(logits.rows);
  SampleTokens(logits, device_rows.get(), workspace.get(),
               {tokens.get(), logprobs.get(), entropies.get(), finite.get()}, nullptr);
  const TopLogprobsPlan plan = PlanTopLogprobs(logits.rows, logits.cols, n, H200Limits());
  const DeviceArray<uint8_t> keys(plan.workspace_bytes);
  const DeviceArray<TopLogprob> top(std::vector<TopLogprob>(logits.rows * n, {-7, -7}));
  TopLogprobs(logits, device_rows.get(), workspace.get(), plan, keys.get(), top.get(), nullptr);
  return {top.Download(), tokens.Download(), finite.Download(), logprobs.Download()};
}

std::vector<SamplerRow> Rows(int64_t count, float temperature) {
  std::vector<SamplerRow> rows(count);
  for (int64_t i = 0; i < count; ++i) {
    rows[i].temperature = temperature;
    rows[i].seed = 5;
    rows[i].position = static_cast<uint64_t>(i);
    rows[i].active = 1;
  }
  return rows;
}

TEST_F(CudaTopLogprobsTest, AreTheMostLikelyByTheDefinition) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const int64_t vocabulary : {20, 1000, 1024, 1025, 49153, 151936}) {
      constexpr int64_t kRows = 9;
      std::vector<float> values(kRows * vocabulary);
      for (float& v : values) v = 4 * normal(random);
      for (int64_t i = 0; i < vocabulary; i += 3) values[i] = 1;  // a row of many ties
      const DeviceMatrix logits(dtype, values, kRows, vocabulary, 5);
      const std::vector<float> rounded = logits.Download();
      for (const float temperature : {0.0f, 0.7f, 1.0f}) {
        for (const int64_t n : {1, 5, 20}) {
          std::vector<SamplerRow> rows = Rows(kRows, temperature);
          rows[2].active = 0;
          rows[3].top_k = 4;  // filters change nothing
          const Result got = TopOf(logits.view(), rows, n);
          for (int64_t r = 0; r < kRows; ++r) {
            const std::span<const float> row(rounded.data() + r * vocabulary,
                                             static_cast<size_t>(vocabulary));
            std::vector<int32_t> ids(n);
            std::vector<double> expected(n);
            TopLogprobsReference(row, temperature, n, ids.data(), expected.data());
            for (int64_t i = 0; i < n; ++i) {
              const TopLogprob& top = got.top[r * n + i];
              if (r == 2) {
                ASSERT_EQ(top.token_id, -7) << "padding was written";
                continue;
              }
              ASSERT_EQ(top.token_id, ids[i]) << "row " << r << " place " << i;
              // Powers of two by the approximate instruction, sums of up to the vocabulary.
              const double tolerance = 64 * kFloatEps * (8 + std::abs(expected[i]));
              ASSERT_NEAR(top.logprob, expected[i], tolerance);
              // The drawn token's own, where it is among them, to the last bit.
              if (top.token_id == got.tokens[r]) {
                ASSERT_EQ(top.logprob, got.logprobs[r]);
              }
            }
            if (temperature == 0 && r != 2) {
              ASSERT_EQ(got.top[r * n].token_id, got.tokens[r]);
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaTopLogprobsTest, RowsThatAreNotFiniteGiveNothingAndDisturbNobody) {
  constexpr int64_t kVocabulary = 3000;
  std::vector<float> values(3 * kVocabulary, 0.0f);
  for (int64_t i = 0; i < 3 * kVocabulary; ++i) values[i] = static_cast<float>(i % 97) * 0.1f;
  values[kVocabulary + 1500] = std::numeric_limits<float>::quiet_NaN();
  const DeviceMatrix logits(DType::kFloat32, values, 3, kVocabulary);
  const Result got = TopOf(logits.view(), Rows(3, 1), 3);
  EXPECT_EQ(got.finite, (std::vector<int32_t>{1, 0, 1}));
  for (const int64_t i : {0, 1, 2}) {
    EXPECT_EQ(got.top[i].token_id, 96 + 97 * i);
    EXPECT_EQ(got.top[3 + i].token_id, -7);
    EXPECT_GE(got.top[6 + i].token_id, 0);
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

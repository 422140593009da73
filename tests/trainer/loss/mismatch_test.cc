#include "trainer/loss/mismatch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

const std::vector<uint8_t> kMask = {1, 0, 1};

TEST(MismatchTest, ByHand) {
  // d = 0.5 and -0.25. kl: e^0.5 - 1.5 = 0.1487212707 and e^-0.25 - 0.75 = 0.0288007831.
  const std::vector<float> train = {-1, NAN, -2};
  const std::vector<float> rollout = {-1.5, NAN, -1.75};
  MismatchSums sums;
  ASSERT_TRUE(AddMismatch(train, rollout, kMask, 4, &sums).ok());
  EXPECT_NEAR(sums.kl_sum, 0.14872127070012815 + 0.02880078307140488, 1e-15);
  EXPECT_DOUBLE_EQ(sums.k1_sum, -0.25);
  EXPECT_DOUBLE_EQ(sums.abs_diff_sum, 0.75);
  EXPECT_DOUBLE_EQ(sums.abs_diff_max, 0.5);
  EXPECT_NEAR(sums.mult_prob_error_sum, std::exp(0.5) + std::exp(0.25), 1e-15);
  EXPECT_DOUBLE_EQ(sums.abs_diff_episode_sum, 0.75 / 4);
  EXPECT_DOUBLE_EQ(sums.kl_episode_sum, sums.kl_sum / 4);
  EXPECT_EQ(sums.num_tokens, 2);
}

TEST(MismatchTest, IsTheKlOfTheRolloutFromTheTrainer) {
  // One token for each outcome, weighted by the sampler's probability. The other direction differs.
  const std::vector<double> rollout = {0.5, 0.25, 0.15, 0.1};
  const std::vector<double> train = {0.1, 0.2, 0.3, 0.4};
  double expected = 0, of_kl = 0, of_k1 = 0;
  for (size_t a = 0; a < 4; ++a) {
    MismatchSums sums;
    const std::vector<float> train_logp = {static_cast<float>(std::log(train[a]))};
    const std::vector<float> rollout_logp = {static_cast<float>(std::log(rollout[a]))};
    ASSERT_TRUE(AddMismatch(train_logp, rollout_logp, std::vector<uint8_t>{1}, 1, &sums).ok());
    expected += rollout[a] * std::log(rollout[a] / train[a]);
    of_kl += rollout[a] * sums.kl_sum;
    of_k1 += rollout[a] * sums.k1_sum;
  }
  const double tolerance = 16 * std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(of_kl, expected, tolerance);
  EXPECT_NEAR(of_k1, expected, tolerance);
}

TEST(MismatchTest, EqualBitsAreExactlyZeroAndOneBitIsSeen) {
  std::vector<float> train = {-1.2345f, NAN, -0.001f};
  const std::vector<float> rollout = train;
  MismatchSums equal;
  ASSERT_TRUE(AddMismatch(train, rollout, kMask, 2, &equal).ok());
  EXPECT_EQ(equal.kl_sum, 0);
  EXPECT_EQ(equal.abs_diff_max, 0);
  EXPECT_EQ(equal.mult_prob_error_sum, 2);
  train[2] = std::nextafter(train[2], 0.0f);
  MismatchSums one_bit;
  ASSERT_TRUE(AddMismatch(train, rollout, kMask, 2, &one_bit).ok());
  EXPECT_GT(one_bit.abs_diff_max, 0);
  EXPECT_GT(one_bit.kl_sum, 0);
}

TEST(MismatchTest, ClampsAsMiles) {
  MismatchSums sums;
  const std::vector<uint8_t> mask = {1};
  ASSERT_TRUE(AddMismatch(std::vector<float>{-1}, std::vector<float>{-90}, mask, 1, &sums).ok());
  EXPECT_EQ(sums.kl_sum, 10);
  EXPECT_EQ(sums.abs_diff_max, 89);
}

TEST(MismatchTest, AddsUp) {
  const std::vector<float> train = {-1, NAN, -2};
  const std::vector<float> rollout = {-1.5, NAN, -1.75};
  MismatchSums a, b, both;
  ASSERT_TRUE(AddMismatch(train, rollout, kMask, 2, &a).ok());
  ASSERT_TRUE(AddMismatch(rollout, train, kMask, 3, &b).ok());
  ASSERT_TRUE(AddMismatch(train, rollout, kMask, 2, &both).ok());
  ASSERT_TRUE(AddMismatch(rollout, train, kMask, 3, &both).ok());
  a += b;
  EXPECT_EQ(a.kl_sum, both.kl_sum);
  EXPECT_EQ(a.num_tokens, both.num_tokens);
  EXPECT_EQ(a.abs_diff_max, both.abs_diff_max);
  EXPECT_EQ(a.kl_episode_sum, both.kl_episode_sum);
}

TEST(MismatchTest, NotFiniteIsAnErrorWithItsPlace) {
  MismatchSums sums;
  const absl::Status status =
      AddMismatch(std::vector<float>{-1, 0, -2}, std::vector<float>{-1, 0, NAN}, kMask, 2, &sums);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(StatusText(status).find("token 2"), std::string::npos) << status;
  EXPECT_EQ(sums.num_tokens, 0);
}

TEST(MismatchDeathTest, LengthsMustAgree) {
  MismatchSums sums;
  EXPECT_DEATH(
      AddMismatch(std::vector<float>{-1}, std::vector<float>{-1}, kMask, 1, &sums).IgnoreError(),
      "train_logp");
}

}  // namespace
}  // namespace orrery::trainer

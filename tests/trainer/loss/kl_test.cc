#include "trainer/loss/kl.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace orrery::trainer {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// Four outcomes: policy p, reference q, and an older policy. All differ, so no sign or direction
// can hide.
using Distribution = std::array<double, 4>;
constexpr Distribution kPolicy = {0.5, 0.25, 0.15, 0.1};
constexpr Distribution kReference = {0.1, 0.2, 0.3, 0.4};
constexpr Distribution kOld = {0.4, 0.3, 0.2, 0.1};

double Kl(const Distribution& p, const Distribution& q) {
  double sum = 0;
  for (size_t a = 0; a < p.size(); ++a) sum += p[a] * std::log(p[a] / q[a]);
  return sum;
}

double ExpectedValue(KlKind kind) {
  double sum = 0;
  for (size_t a = 0; a < 4; ++a) {
    sum += kPolicy[a] * EstimateKl(kind, std::log(kPolicy[a]), std::log(kReference[a])).value;
  }
  return sum;
}

// Gradients are taken of the logits z of the policy: d log p_a / d z_b = [a = b] - p_b.
double LogitDerivative(size_t a, size_t b) { return (a == b ? 1.0 : 0.0) - kPolicy[b]; }

// d KL(p || q) / d z_b = p_b (log(p_b / q_b) - KL).
double KlGradient(size_t b) {
  return kPolicy[b] * (std::log(kPolicy[b] / kReference[b]) - Kl(kPolicy, kReference));
}

double ExpectedGradient(KlKind kind, size_t b) {
  double sum = 0;
  for (size_t a = 0; a < 4; ++a) {
    const KlTerm term = EstimateKl(kind, std::log(kPolicy[a]), std::log(kReference[a]));
    sum += kPolicy[a] * term.slope * LogitDerivative(a, b);
  }
  return sum;
}

TEST(KlTest, ByHand) {
  // x = logp - reference = 0.5.
  EXPECT_DOUBLE_EQ(EstimateKl(KlKind::kK1, -1, -1.5).value, 0.5);
  EXPECT_DOUBLE_EQ(EstimateKl(KlKind::kK2, -1, -1.5).value, 0.125);
  // e^-0.5 - 1 + 0.5 = 0.1065306597
  EXPECT_NEAR(EstimateKl(KlKind::kK3, -1, -1.5).value, 0.10653065971263342, 1e-16);
  EXPECT_NEAR(EstimateKl(KlKind::kLowVar, -1, -1.5).value, 0.10653065971263342, 1e-16);
  // x = -0.5: e^0.5 - 1 - 0.5 = 0.1487212707; k1 is negative.
  EXPECT_NEAR(EstimateKl(KlKind::kK3, -1.5, -1).value, 0.14872127070012815, 1e-16);
  EXPECT_DOUBLE_EQ(EstimateKl(KlKind::kK1, -1.5, -1).value, -0.5);
  EXPECT_EQ(EstimateKl(KlKind::kNone, -1.5, -1).value, 0);
}

TEST(KlTest, EqualDistributionsAreExactlyZero) {
  for (const KlKind kind : {KlKind::kK1, KlKind::kK2, KlKind::kK3, KlKind::kLowVar}) {
    EXPECT_EQ(EstimateKl(kind, -1.7f, -1.7f).value, 0);
  }
}

TEST(KlTest, SmallDifferencesKeepTheirPrecision) {
  // k3 = x^2 / 2 - x^3 / 6 + ...; exp(-x) - 1 + x in double would be off by 1e-4 of it.
  const double x = 1e-6;
  EXPECT_NEAR(EstimateKl(KlKind::kK3, x, 0).value, x * x / 2 - x * x * x / 6, x * x * 1e-9);
}

TEST(KlTest, SignAndDirection) {
  const double kl = Kl(kPolicy, kReference);
  ASSERT_GT(std::abs(kl - Kl(kReference, kPolicy)), 0.01);  // the other direction is another number
  EXPECT_NEAR(ExpectedValue(KlKind::kK1), kl, 16 * kEpsilon);
  EXPECT_NEAR(ExpectedValue(KlKind::kK3), kl, 16 * kEpsilon);
  EXPECT_NEAR(ExpectedValue(KlKind::kLowVar), kl, 16 * kEpsilon);
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_GE(EstimateKl(KlKind::kK3, std::log(kPolicy[a]), std::log(kReference[a])).value, 0);
  }
}

TEST(KlTest, InTheLossK2HasTheRightGradientAndK1None) {
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(ExpectedGradient(KlKind::kK2, b), KlGradient(b), 16 * kEpsilon);
    EXPECT_NEAR(ExpectedGradient(KlKind::kK1, b), 0, 16 * kEpsilon);
  }
  EXPECT_GT(std::abs(ExpectedGradient(KlKind::kK3, 0) - KlGradient(0)), 0.01);
}

TEST(KlTest, UnbiasedIsTheKlAndItsGradientOnSamplesOfTheOldPolicy) {
  for (const KlKind kind : {KlKind::kK3, KlKind::kLowVar}) {
    double value = 0;
    std::array<double, 4> gradient = {};
    for (size_t a = 0; a < 4; ++a) {
      const KlTerm term = EstimateUnbiasedKl(kind, std::log(kPolicy[a]), std::log(kOld[a]),
                                             std::log(kReference[a]));
      value += kOld[a] * term.value;
      for (size_t b = 0; b < 4; ++b) gradient[b] += kOld[a] * term.slope * LogitDerivative(a, b);
    }
    EXPECT_NEAR(value, Kl(kPolicy, kReference), 16 * kEpsilon);
    for (size_t b = 0; b < 4; ++b) EXPECT_NEAR(gradient[b], KlGradient(b), 32 * kEpsilon);
  }
}

TEST(KlTest, LowVarClamps) {
  // x = -3: e^3 - 1 - 3 = 16.09 -> 10, constant. k3 is not clamped.
  EXPECT_EQ(EstimateKl(KlKind::kLowVar, -4, -1).value, 10);
  EXPECT_EQ(EstimateKl(KlKind::kLowVar, -4, -1).slope, 0);
  EXPECT_NEAR(EstimateKl(KlKind::kK3, -4, -1).value, std::exp(3.0) - 4, 1e-14);
  // x = 15: e^-15 - 1 + 15 = 14 -> 10.
  EXPECT_EQ(EstimateKl(KlKind::kLowVar, -1, -16).value, 10);
  // x = -1000 would overflow.
  EXPECT_EQ(EstimateKl(KlKind::kLowVar, -1000, 0).value, 10);
  EXPECT_TRUE(std::isinf(EstimateKl(KlKind::kK3, -1000, 0).value));
  // The clamp of the value comes after the ratio: x = 5 gives 4.0067, ratio e^1 makes it 10.89.
  EXPECT_EQ(EstimateUnbiasedKl(KlKind::kLowVar, -1, -2, -6).value, 10);
  EXPECT_EQ(EstimateUnbiasedKl(KlKind::kLowVar, -1, -2, -6).slope, 0);
}

TEST(KlTest, BeyondTheClampOfXOnlyTheRatioMoves) {
  // x = 25 is clamped to 20: k3 = e^-20 + 19, constant. With ratio e^-2 the value is below 10, and
  // its slope is that of the ratio alone: the value itself.
  const KlTerm term = EstimateUnbiasedKl(KlKind::kLowVar, -3, -1, -28);
  EXPECT_NEAR(term.value, std::exp(-2.0) * (19 + std::exp(-20.0)), 16 * kEpsilon);
  EXPECT_DOUBLE_EQ(term.slope, term.value);
}

TEST(KlRewardTest, PenaltyAndReturns) {
  const std::vector<float> old = {-1, NAN, -2, -0.5};
  const std::vector<float> reference = {-1.5, NAN, -1, -0.5};
  const std::vector<uint8_t> mask = {1, 0, 1, 1};
  std::vector<double> rewards(4, 99.0);
  KlPenaltyRewards(KlKind::kK1, old, reference, mask, 0.1, rewards);
  EXPECT_DOUBLE_EQ(rewards[0], -0.05);
  EXPECT_EQ(rewards[1], 0);
  EXPECT_DOUBLE_EQ(rewards[2], 0.1);
  EXPECT_EQ(rewards[3], 0);
  rewards[3] += 1;  // the episode's reward
  std::vector<double> returns(4);
  RewardToGo(rewards, mask, 1.0, returns);
  EXPECT_DOUBLE_EQ(returns[0], 1.05);
  EXPECT_EQ(returns[1], 0);
  EXPECT_DOUBLE_EQ(returns[2], 1.1);
  EXPECT_DOUBLE_EQ(returns[3], 1);
  // Discounted by trained token: the masked one costs nothing. -0.05 + 0.5 (0.1 + 0.5 * 1) = 0.25.
  RewardToGo(rewards, mask, 0.5, returns);
  EXPECT_DOUBLE_EQ(returns[0], 0.25);
}

}  // namespace
}  // namespace orrery::trainer

#include "trainer/loss/clip.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/loss/sequence_data.h"

namespace orrery::trainer {
namespace {

const ClipRange kRange{0.2, 0.28, 0};

TEST(ClipTest, RatioAboveTheRange) {
  // r = e^0.5 = 1.6487212707. A = 1: L1 = -1.6487, L2 = -1.28, the larger is L2: constant.
  TokenTerm term = ClippedTerm(0.5, 1, kRange);
  EXPECT_DOUBLE_EQ(term.loss, -1.28);
  EXPECT_EQ(term.slope, 0);
  EXPECT_TRUE(term.clipped);
  EXPECT_DOUBLE_EQ(term.ppo_kl, -0.5);
  // A = -1: L1 = 1.6487, L2 = 1.28, the larger is L1: still pushed down.
  term = ClippedTerm(0.5, -1, kRange);
  EXPECT_NEAR(term.loss, 1.6487212707001282, 1e-15);
  EXPECT_NEAR(term.slope, 1.6487212707001282, 1e-15);
  EXPECT_FALSE(term.clipped);
}

TEST(ClipTest, RatioBelowTheRange) {
  // r = e^-0.5 = 0.6065306597. A = 1: L1 = -0.6065, L2 = -0.8: L1, still pushed up.
  TokenTerm term = ClippedTerm(-0.5, 1, kRange);
  EXPECT_NEAR(term.loss, -0.6065306597126334, 1e-15);
  EXPECT_NEAR(term.slope, -0.6065306597126334, 1e-15);
  EXPECT_FALSE(term.clipped);
  // A = -2: L1 = 1.2131, L2 = 1.6: L2, constant.
  term = ClippedTerm(-0.5, -2, kRange);
  EXPECT_DOUBLE_EQ(term.loss, 1.6);
  EXPECT_EQ(term.slope, 0);
  EXPECT_TRUE(term.clipped);
}

TEST(ClipTest, OnPolicyTheRatioIsExactlyOneAndNothingIsClipped) {
  for (const double advantage : {-3.7, -1.0, 0.0, 0.1, 2.5}) {
    const TokenTerm term = ClippedTerm(0, advantage, {0, 0, 0});
    EXPECT_EQ(term.ratio, 1.0);
    EXPECT_EQ(term.loss, -advantage);
    EXPECT_EQ(term.slope, -advantage);
    EXPECT_FALSE(term.clipped);
    EXPECT_EQ(term.ppo_kl, 0);
  }
}

TEST(ClipTest, AdvantageZeroIsNeverClipped) {
  EXPECT_FALSE(ClippedTerm(1, 0, kRange).clipped);
  EXPECT_EQ(ClippedTerm(1, 0, kRange).loss, 0);
}

TEST(ClipTest, DualClipBoundsOnlyNegativeAdvantages) {
  // r = e^1.5 = 4.4817. A = -2: L = min(3 * 2, 8.963) = 6, constant. A = 2: as without.
  const ClipRange dual{0.2, 0.28, 3};
  const TokenTerm bounded = ClippedTerm(1.5, -2, dual);
  EXPECT_DOUBLE_EQ(bounded.loss, 6);
  EXPECT_EQ(bounded.slope, 0);
  EXPECT_TRUE(bounded.dual_clipped);
  EXPECT_FALSE(bounded.clipped);
  const TokenTerm good = ClippedTerm(1.5, 2, dual);
  EXPECT_DOUBLE_EQ(good.loss, -2.56);
  EXPECT_FALSE(good.dual_clipped);
  // r = e^1 = 2.718 < 3: not bounded yet.
  EXPECT_DOUBLE_EQ(ClippedTerm(1, -2, dual).loss, 2 * std::exp(1.0));
}

TEST(ClipTest, LogRatioIsClampedToTwenty) {
  const TokenTerm term = ClippedTerm(50, -1, kRange);
  EXPECT_DOUBLE_EQ(term.loss, std::exp(20.0));
  EXPECT_EQ(term.slope, 0);
  EXPECT_EQ(term.ppo_kl, -50);
  EXPECT_DOUBLE_EQ(ClippedTerm(-50, 1, kRange).loss, -std::exp(-20.0));
  EXPECT_EQ(ClippedTerm(-50, 1, kRange).slope, 0);
}

TEST(ClipTest, MaskedTokensAreLeftAlone) {
  SequenceData data;
  data.Add(0.1, 1);
  data.Add(NAN, NAN, NAN, NAN, NAN, 0);
  std::vector<TokenTerm> terms(2);
  terms[1].loss = 7;
  ClippedSurrogate(kRange).Forward(data.view(), terms);
  EXPECT_EQ(terms[1].loss, 7);
  EXPECT_NEAR(terms[0].loss, -std::exp(0.1), 1e-6);  // float log-probs
}

}  // namespace
}  // namespace orrery::trainer

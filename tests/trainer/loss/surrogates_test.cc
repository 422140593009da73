// GSPO, CISPO and REINFORCE, by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/trainer/loss/sequence_data.h"
#include "trainer/loss/cispo.h"
#include "trainer/loss/gspo.h"
#include "trainer/loss/reinforce.h"

namespace orrery::trainer {
namespace {

std::vector<TokenTerm> Forward(const Surrogate& surrogate, const SequenceData& data) {
  std::vector<TokenTerm> terms(data.size());
  surrogate.Forward(data.view(), terms);
  return terms;
}

TEST(GspoTest, OneRatioOverTheTrainedTokens) {
  // Log ratios 0.25, -0.5 and 1 over three trained tokens, a masked one between: mean 0.25,
  // s = e^0.25 = 1.2840254167, above 1.28: with A = 1 clipped, with A = -1 not.
  SequenceData data;
  data.Add(0.25, 1);
  data.Add(NAN, NAN, NAN, NAN, NAN, 0);
  data.Add(-0.5, 1);
  data.Add(1, -1);
  const std::vector<TokenTerm> terms = Forward(GspoSurrogate({0.2, 0.28, 0}), data);
  EXPECT_DOUBLE_EQ(terms[0].loss, -1.28);
  EXPECT_DOUBLE_EQ(terms[2].loss, -1.28);
  EXPECT_NEAR(terms[3].loss, 1.2840254166877414, 1e-15);
  EXPECT_TRUE(terms[0].clipped);
  EXPECT_FALSE(terms[3].clipped);
  for (const size_t t : {0, 2, 3}) EXPECT_DOUBLE_EQ(terms[t].ppo_kl, -0.25);
}

TEST(GspoTest, GradientReachesEveryTokenThroughTheMean) {
  // s = e^0.1, A = 2 at one token and 0 at the other: dL/dlogp of both is -(1/2) w s A.
  SequenceData data;
  data.Add(0.375, 2);
  data.Add(NAN, NAN, NAN, NAN, NAN, 0);
  data.Add(-0.25, 0);
  const GspoSurrogate gspo({0.2, 0.28, 0});
  const std::vector<TokenTerm> terms = Forward(gspo, data);
  std::vector<double> dlogp(3, 0.0);
  gspo.Backward(data.view(), terms, std::vector<double>{0.5, 99, 0.5}, dlogp);
  const double s = std::exp(0.0625);
  EXPECT_DOUBLE_EQ(dlogp[0], -0.5 * s * 2 / 2);
  EXPECT_DOUBLE_EQ(dlogp[2], dlogp[0]);
  EXPECT_EQ(dlogp[1], 0);
}

TEST(GspoTest, OnPolicyTheRatioIsExactlyOne) {
  SequenceData data = RandomSequence(3, 50, 0);
  for (const TokenTerm& term : Forward(GspoSurrogate({3e-4, 4e-4, 0}), data)) {
    EXPECT_EQ(term.ratio, 1.0);
    EXPECT_FALSE(term.clipped);
  }
}

TEST(CispoTest, TheWeightIsClippedAndTheGradientStays) {
  // logp = -1, old = -1.5: r = 1.6487, clipped to 1.28. L = -1.28 * 2 * -1 = 2.56, dL/dlogp =
  // -2.56.
  SequenceData data;
  data.Add(0.5, 2);
  data.Add(-1, 2);  // r = e^-1 = 0.3679, no lower bound; logp = -2.5: L = 0.3679 * 2 * 2.5
  const std::vector<TokenTerm> terms = Forward(CispoSurrogate({1, 0.28, 0}), data);
  EXPECT_DOUBLE_EQ(terms[0].loss, 2.56);
  EXPECT_DOUBLE_EQ(terms[0].slope, -2.56);
  EXPECT_TRUE(terms[0].clipped);
  EXPECT_NEAR(terms[1].loss, 5 * 0.36787944117144233, 1e-14);
  EXPECT_NEAR(terms[1].slope, -2 * 0.36787944117144233, 1e-15);
  EXPECT_FALSE(terms[1].clipped);
}

TEST(CispoTest, ALowerBoundLiftsTheWeight) {
  SequenceData data;
  data.Add(-1, 1);
  const std::vector<TokenTerm> terms = Forward(CispoSurrogate({0.2, 0.28, 0}), data);
  EXPECT_DOUBLE_EQ(terms[0].slope, -0.8);
  EXPECT_TRUE(terms[0].clipped);
}

TEST(ReinforceTest, IsTheWeightedCrossEntropy) {
  SequenceData data;
  data.Add(0.5, 1);    // logp -1
  data.Add(-0.5, -3);  // logp -2
  const std::vector<TokenTerm> terms = Forward(ReinforceSurrogate(), data);
  EXPECT_DOUBLE_EQ(terms[0].loss, 1);
  EXPECT_DOUBLE_EQ(terms[0].slope, -1);
  EXPECT_DOUBLE_EQ(terms[1].loss, -6);
  EXPECT_DOUBLE_EQ(terms[1].slope, 3);
  EXPECT_DOUBLE_EQ(terms[1].ratio, std::exp(-0.5));
}

TEST(ReinforceTest, NeedsNoOldLogProbs) {
  SequenceData data;
  data.Add(0.5, 1);
  data.old_logp.clear();
  const std::vector<TokenTerm> terms = Forward(ReinforceSurrogate(), data);
  EXPECT_DOUBLE_EQ(terms[0].loss, 1);
  EXPECT_EQ(terms[0].ratio, 1);
  EXPECT_EQ(terms[0].ppo_kl, 0);
}

}  // namespace
}  // namespace orrery::trainer

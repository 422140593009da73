#include "trainer/loss/correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace orrery::trainer {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

// d = log 4, log 1, log 1/4 and a masked token that must not be looked at: ratios 4, 1, 0.25. Float
// log-probs leave a relative error of float epsilon in a ratio.
const float kLog4 = std::log(4.0f);
const std::vector<float> kOld = {-1, -1, NAN, -1};
const std::vector<float> kRollout = {-1 - kLog4, -1, NAN, -1 + kLog4};
const std::vector<uint8_t> kMask = {1, 1, 0, 1};
constexpr double kTolerance = 1e-6;

CorrectedTokens Weigh(const CorrectionOptions& options, CorrectionSums* sums) {
  return Correct(options, kOld, kRollout, kMask, sums);
}
CorrectedTokens Weigh(const CorrectionOptions& options) {
  CorrectionSums sums;
  return Weigh(options, &sums);
}
auto Near(double x) { return DoubleNear(x, kTolerance); }

TEST(CorrectionTest, NoneReadsNothing) {
  CorrectionSums sums;
  const CorrectedTokens tokens = Correct({}, {}, {}, kMask, &sums);
  EXPECT_THAT(tokens.weight, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(tokens.keep, ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(sums.weight_sum, 0);
}

TEST(CorrectionTest, TisClips) {
  CorrectionSums sums;
  const CorrectedTokens tokens =
      Weigh({.kind = CorrectionKind::kTis, .low = 0.5, .high = 2}, &sums);
  EXPECT_THAT(tokens.weight, ElementsAre(2, 1, 1, 0.5));
  EXPECT_THAT(tokens.keep, ElementsAre(1, 1, 1, 1));
  EXPECT_NEAR(sums.weight_sum, 5.25, kTolerance);  // before clipping
  EXPECT_NEAR(sums.abs_sum, 3 + 0 + 0.75, kTolerance);
  EXPECT_EQ(sums.num_bounded, 2);
  EXPECT_EQ(sums.num_rejected, 0);
}

TEST(CorrectionTest, TisByDefaultHasNoLowerBound) {
  EXPECT_THAT(Weigh({.kind = CorrectionKind::kTis}).weight, ElementsAre(2, 1, 1, Near(0.25)));
}

TEST(CorrectionTest, IcePopDropsWhatIsOutside) {
  CorrectionSums sums;
  const CorrectedTokens tokens =
      Weigh({.kind = CorrectionKind::kIcePop, .low = 0.5, .high = 5}, &sums);
  EXPECT_THAT(tokens.weight, ElementsAre(Near(4), 1, 1, 0));
  EXPECT_THAT(tokens.keep, ElementsAre(1, 1, 1, 1));  // entropy and KL of the token stay
  EXPECT_EQ(sums.num_bounded, 1);
}

TEST(CorrectionTest, EqualLogProbsHaveWeightExactlyOne) {
  for (const CorrectionKind kind :
       {CorrectionKind::kTis, CorrectionKind::kIcePop, CorrectionKind::kMis}) {
    CorrectionSums sums;
    const CorrectedTokens tokens = Correct({.kind = kind, .low = 0.5}, kOld, kOld, kMask, &sums);
    EXPECT_THAT(tokens.weight, ElementsAre(1, 1, 1, 1));
    EXPECT_EQ(sums.abs_sum, 0);
    EXPECT_EQ(sums.weight_sum, 3);
  }
}

TEST(CorrectionTest, MisTokenModes) {
  CorrectionOptions options{.kind = CorrectionKind::kMis, .low = 0.5, .high = 2};
  EXPECT_THAT(Weigh(options).weight, ElementsAre(2, 1, 1, Near(0.25)));  // truncate: above only
  options.mode = CorrectionMode::kClip;
  EXPECT_THAT(Weigh(options).weight, ElementsAre(2, 1, 1, 0.5));
  options.mode = CorrectionMode::kMask;
  CorrectionSums sums;
  const CorrectedTokens masked = Weigh(options, &sums);
  EXPECT_THAT(masked.weight, ElementsAre(Near(4), 1, 1, Near(0.25)));
  EXPECT_THAT(masked.keep, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(sums.num_rejected, 2);
  EXPECT_EQ(sums.num_bounded, 2);
}

TEST(CorrectionTest, MisLevels) {
  // d = log 4, log 2, masked, 0: the sum is log 8, the mean log 2.
  const std::vector<float> rollout = {-1 - kLog4, -1 - kLog4 / 2, NAN, -1};
  CorrectionOptions options{.kind = CorrectionKind::kMis, .low = 0, .high = 100};
  CorrectionSums sums;
  options.level = CorrectionLevel::kSequence;
  EXPECT_THAT(Correct(options, kOld, rollout, kMask, &sums).weight,
              ElementsAre(Near(8), Near(8), 1, Near(8)));
  options.level = CorrectionLevel::kGeometric;
  EXPECT_THAT(Correct(options, kOld, rollout, kMask, &sums).weight,
              ElementsAre(Near(2), Near(2), 1, Near(2)));
}

TEST(CorrectionTest, RejectionWorksAtItsOwnLevel) {
  CorrectionOptions options{
      .kind = CorrectionKind::kMis, .high = 3, .reject = true, .reject_low = 0.5, .reject_high = 2};
  CorrectedTokens tokens = Weigh(options);
  EXPECT_THAT(tokens.weight, ElementsAre(3, 1, 1, Near(0.25)));
  EXPECT_THAT(tokens.keep, ElementsAre(0, 1, 1, 0));
  options.reject_level = CorrectionLevel::kGeometric;  // mean of d is 0: ratio 1, all kept
  EXPECT_THAT(Weigh(options).keep, ElementsAre(1, 1, 1, 1));
}

TEST(CorrectionTest, OneTokenVetoesItsSequence) {
  CorrectionOptions options{.kind = CorrectionKind::kMis, .veto_threshold = 0.26};
  CorrectionSums sums;
  EXPECT_THAT(Weigh(options, &sums).keep, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(sums.num_vetoed_sequences, 1);
  EXPECT_EQ(sums.num_rejected, 3);
  options.veto_threshold = 0.24;
  EXPECT_THAT(Weigh(options).keep, ElementsAre(1, 1, 1, 1));
}

TEST(CorrectionTest, HugeDifferencesAreClamped) {
  const std::vector<float> old = {-1, -1000};
  const std::vector<float> rollout = {-1000, -1};
  const std::vector<uint8_t> mask = {1, 1};
  CorrectionSums sums;
  Correct({.kind = CorrectionKind::kTis}, old, rollout, mask, &sums);
  EXPECT_DOUBLE_EQ(sums.weight_sum, std::exp(20.0) + std::exp(-20.0));
}

TEST(CorrectionTest, BatchMean) {
  // Token level: weights 2, 1, 0.25 -> mean 3.25 / 3. A second sequence adds its own.
  const CorrectionOptions token{.kind = CorrectionKind::kMis, .high = 2};
  CorrectionMean mean = BatchWeight(token, kOld, kRollout, kMask);
  EXPECT_NEAR(mean.mean(), 3.25 / 3, kTolerance);
  mean += BatchWeight(token, kOld, kOld, kMask);
  EXPECT_NEAR(mean.mean(), 6.25 / 6, kTolerance);
  // Sequence level: one weight a sequence, whatever its length. d = 2 log 2 -> 4, and 1.
  const CorrectionOptions sequence{
      .kind = CorrectionKind::kMis, .high = 100, .level = CorrectionLevel::kSequence};
  const std::vector<float> rollout = {-1 - kLog4 / 2, -1 - kLog4 / 2, NAN, -1};
  mean = BatchWeight(sequence, kOld, rollout, kMask);
  EXPECT_EQ(mean.count, 1);
  const std::vector<float> one = {-1};
  mean += BatchWeight(sequence, one, one, std::vector<uint8_t>{1});
  EXPECT_NEAR(mean.mean(), 2.5, kTolerance);
}

TEST(CorrectionTest, BatchMeanOfNothingIsOne) {
  EXPECT_EQ(CorrectionMean{}.mean(), 1);
  EXPECT_EQ((CorrectionMean{1e-9, 1}).mean(), 1);
}

TEST(CorrectionDeathTest, LengthsMustAgree) {
  CorrectionSums sums;
  EXPECT_DEATH(Correct({.kind = CorrectionKind::kTis}, kOld, {}, kMask, &sums), "rollout_logp");
}

}  // namespace
}  // namespace orrery::trainer

// Finite differences of the whole loss against its gradients, over algorithms, aggregations, KL and
// corrections.
//
// Log-probs are multiples of 2^-12 and steps are 2^-10 and 2^-9, so that every shifted input is
// exact in float and the differences are those of the double function. Central differences D(h) and
// D(2h) combine to (4 D(h) - D(2h)) / 3, whose error is h^4 f5 / 30 * 4 (truncation) plus a few
// epsilon * |f| / h (rounding). The terms are products of at most two exponentials of a log-prob,
// so that |f5| <= 2^5 times the size of the terms; tolerance: the sum of both bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/loss/sequence_data.h"
#include "trainer/loss/loss.h"

namespace orrery::trainer {
namespace {

constexpr double kStep = 0x1.0p-10;
constexpr LossDenominators kDenominators{
    .num_episodes = 3, .num_trained_tokens = 20, .horizon = 16, .mean_correction_weight = 1.125};

constexpr Algorithm kAlgorithms[] = {Algorithm::kGrpo,
                                     Algorithm::kDrGrpo,
                                     Algorithm::kDapo,
                                     Algorithm::kRloo,
                                     Algorithm::kReinforcePlusPlus,
                                     Algorithm::kGspo,
                                     Algorithm::kCispo,
                                     Algorithm::kReinforce};
constexpr Aggregation kAggregations[] = {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean,
                                         Aggregation::kSeqMeanTokenSum,
                                         Aggregation::kSeqMeanTokenSumNorm, Aggregation::kTokenSum};

// Both signs of the advantage on both sides of the clip and inside, and beyond dual clip, all away
// from a kink by more than 2^-9: kinks of the log ratio are at log 0.8 = -0.223, log 1.28 = 0.247,
// log 3 = 1.099 and 20. The mean is set apart for GSPO by `shift`.
SequenceData Kinks(double shift) {
  SequenceData data;
  RandomStream random(17);
  for (const double log_ratio : {-1.0, -0.5, -0.125, 0.0, 0.125, 0.5, 1.5}) {
    for (const double advantage : {1.5, -0.75}) {
      data.Add(Dyadic(log_ratio + shift), advantage, Dyadic(-2 + random.Uniform()),
               Dyadic(2 * random.Uniform() - 1), Dyadic(random.Uniform() - 0.5));
      data.entropy.back() = static_cast<float>(Dyadic(random.Uniform()));
    }
    data.Add(NAN, NAN, NAN, NAN, NAN, 0);
  }
  data.episode_tokens += 3;  // of another sample of the episode
  return data;
}

double LossOf(const PolicyLoss& loss, const SequenceData& data) {
  std::vector<double> dlogp(data.size()), dentropy(data.size());
  LossSums sums;
  const absl::Status status = loss.Evaluate(data.view(), kDenominators, std::span<double>(dlogp),
                                            std::span<double>(dentropy), &sums);
  CHECK(status.ok()) << StatusText(status);
  return sums.loss;
}

// CISPO holds its ratio constant: what moves with logp is then everything that the ratio and the
// correction are made of.
void ShiftLogp(Algorithm algorithm, size_t t, double by, SequenceData* data) {
  data->logp[t] += static_cast<float>(by);
  if (algorithm != Algorithm::kCispo) return;
  data->old_logp[t] += static_cast<float>(by);
  data->rollout_logp[t] += static_cast<float>(by);
}

double Difference(const PolicyLoss& loss, const SequenceData& data, size_t t, double step) {
  SequenceData up = data, down = data;
  ShiftLogp(loss.options().algorithm, t, step, &up);
  ShiftLogp(loss.options().algorithm, t, -step, &down);
  return (LossOf(loss, up) - LossOf(loss, down)) / (2 * step);
}

double Numeric(const PolicyLoss& loss, const SequenceData& data, size_t t) {
  return (4 * Difference(loss, data, t, kStep) - Difference(loss, data, t, 2 * kStep)) / 3;
}

double EntropyDifference(const PolicyLoss& loss, const SequenceData& data, size_t t) {
  SequenceData up = data, down = data;
  up.entropy[t] += static_cast<float>(kStep);
  down.entropy[t] -= static_cast<float>(kStep);
  return (LossOf(loss, up) - LossOf(loss, down)) / (2 * kStep);
}

double Tolerance(double size) {
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  const double truncation = std::pow(kStep, 4) * 4 / 30 * 32;
  const double rounding = 32 * kEpsilon / kStep;
  return (truncation + rounding) * size;
}

// The sum of the sizes of all that is added up to the loss, coarsely from above.
double TermSize(const PolicyLoss& loss, const SequenceData& data) {
  const LossOptions& options = loss.options();
  double sum = 0;
  for (size_t t = 0; t < data.size(); ++t) {
    if (!data.mask[t]) continue;
    const double ratio = std::exp(std::abs(ClampLogRatio(data.logp[t] - data.old_logp[t])));
    const double weight = options.uses_rollout() ? 20 : 1;
    sum += weight * std::abs(data.advantages[t]) * (ratio + std::abs(data.logp[t]));
    sum += options.uses_reference() ? 4 * (options.unbiased_kl ? ratio : 1) : 0;
    sum += 1;
  }
  return sum * *TokenScale(options.aggregation, kDenominators, data.episode_tokens);
}

void ExpectGradients(const LossOptions& options, const SequenceData& data,
                     const std::string& what) {
  const auto made = MakePolicyLoss(options);
  ASSERT_TRUE(made.ok()) << StatusText(made.status());
  const PolicyLoss& loss = **made;
  std::vector<double> dlogp(data.size()), dentropy(data.size());
  LossSums sums;
  ASSERT_TRUE(loss.Evaluate(data.view(), kDenominators, std::span<double>(dlogp),
                            std::span<double>(dentropy), &sums)
                  .ok());
  const double tolerance = Tolerance(TermSize(loss, data));
  for (size_t t = 0; t < data.size(); ++t) {
    if (!data.mask[t]) {
      EXPECT_EQ(dlogp[t], 0);
      EXPECT_EQ(dentropy[t], 0);
      continue;
    }
    EXPECT_NEAR(dlogp[t], Numeric(loss, data, t), tolerance) << what << " token " << t;
    EXPECT_NEAR(dentropy[t], EntropyDifference(loss, data, t), tolerance) << what << " token " << t;
  }
}

std::vector<CorrectionOptions> Corrections() {
  std::vector<CorrectionOptions> all = {{},
                                        {.kind = CorrectionKind::kTis, .low = 0.5, .high = 2},
                                        {.kind = CorrectionKind::kIcePop, .low = 0.5, .high = 2}};
  for (const auto level :
       {CorrectionLevel::kToken, CorrectionLevel::kSequence, CorrectionLevel::kGeometric}) {
    for (const auto mode :
         {CorrectionMode::kTruncate, CorrectionMode::kClip, CorrectionMode::kMask}) {
      all.push_back({.kind = CorrectionKind::kMis,
                     .low = 0.5,
                     .high = 2,
                     .level = level,
                     .mode = mode,
                     .batch_normalize = mode != CorrectionMode::kMask});
    }
  }
  all.push_back({.kind = CorrectionKind::kMis,
                 .low = 0.5,
                 .high = 2,
                 .reject = true,
                 .reject_low = 0.6,
                 .reject_high = 1.5,
                 .batch_normalize = true});
  all.push_back({.kind = CorrectionKind::kMis, .veto_threshold = 0.9});
  return all;
}

TEST(GradientTest, EveryAlgorithmAndAggregation) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Aggregation aggregation : kAggregations) {
      for (const double shift : {-0.75, 0.0, 0.75}) {
        for (const double dual : {0.0, 3.0}) {
          LossOptions options{
              .algorithm = algorithm, .entropy_coef = 0.25, .aggregation = aggregation};
          const bool has_dual =
              algorithm != Algorithm::kCispo && algorithm != Algorithm::kReinforce;
          if (has_dual) options.dual_clip_c = dual;
          ExpectGradients(
              options, Kinks(shift),
              fmt::format("algorithm {} aggregation {} shift {}", static_cast<int>(algorithm),
                          static_cast<int>(aggregation), shift));
        }
      }
    }
  }
}

TEST(GradientTest, EveryKlWithEveryAlgorithm) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const KlKind kl : {KlKind::kK1, KlKind::kK2, KlKind::kK3, KlKind::kLowVar}) {
      for (const bool unbiased : {false, true}) {
        // CISPO's differences hold the ratio fixed, which the unbiased KL must not.
        if (unbiased && algorithm == Algorithm::kCispo) continue;
        LossOptions options{.algorithm = algorithm,
                            .kl = kl,
                            .kl_coef = 0.5,
                            .unbiased_kl = unbiased,
                            .entropy_coef = -0.125};
        ExpectGradients(options, Kinks(0),
                        fmt::format("algorithm {} kl {} unbiased {}", static_cast<int>(algorithm),
                                    static_cast<int>(kl), unbiased));
      }
    }
  }
}

TEST(GradientTest, EveryCorrectionWithEveryAlgorithm) {
  const std::vector<CorrectionOptions> corrections = Corrections();
  for (const Algorithm algorithm : kAlgorithms) {
    for (size_t i = 0; i < corrections.size(); ++i) {
      for (const double opsm_delta : {0.0, 0.01}) {
        LossOptions options{.algorithm = algorithm,
                            .kl = KlKind::kK2,
                            .kl_coef = 0.25,
                            .entropy_coef = 0.125,
                            .correction = corrections[i],
                            .opsm_delta = opsm_delta};
        // The mean of old - new is about 0.75 - 0.07, beyond delta.
        ExpectGradients(options, Kinks(-0.75),
                        fmt::format("algorithm {} correction {} opsm {}",
                                    static_cast<int>(algorithm), i, opsm_delta));
      }
    }
  }
}

TEST(GradientTest, BeyondTheClampTheLossIsFlat) {
  SequenceData data;
  data.Add(21, -1, -25, 0.25, 0.5);
  data.Add(-21, 1, -1, 0.25, 0.5);
  for (const Algorithm algorithm : {Algorithm::kGrpo, Algorithm::kGspo}) {
    SequenceData sequence = data;
    if (algorithm == Algorithm::kGspo) {  // one ratio a sequence: both beyond
      sequence = {};
      sequence.Add(21, -1, -25);
      sequence.Add(22, -1, -25);
    }
    const LossOptions options{.algorithm = algorithm};
    const auto loss = *MakePolicyLoss(options);
    std::vector<double> dlogp(2), dentropy(2);
    LossSums sums;
    ASSERT_TRUE(loss->Evaluate(sequence.view(), kDenominators, std::span<double>(dlogp),
                               std::span<double>(dentropy), &sums)
                    .ok());
    EXPECT_EQ(dlogp, std::vector<double>(2, 0.0));
    EXPECT_EQ(Difference(*loss, sequence, 0, kStep), 0);
    EXPECT_EQ(Difference(*loss, sequence, 1, kStep), 0);
  }
}

// The checker itself: a KL coefficient that is off by one part in a million is seen.
TEST(GradientTest, ASmallErrorIsSeen) {
  const SequenceData data = Kinks(0);
  LossOptions options{.kl = KlKind::kK2, .kl_coef = 0.5};
  const auto right = *MakePolicyLoss(options);
  options.kl_coef *= 1 + 1e-6;
  const auto wrong = *MakePolicyLoss(options);
  std::vector<double> dlogp(data.size()), dentropy(data.size());
  LossSums sums;
  ASSERT_TRUE(wrong
                  ->Evaluate(data.view(), kDenominators, std::span<double>(dlogp),
                             std::span<double>(dentropy), &sums)
                  .ok());
  double largest = 0;
  for (size_t t = 0; t < data.size(); ++t) {
    if (!data.mask[t]) continue;
    largest = std::max(largest, std::abs(dlogp[t] - Numeric(*right, data, t)));
  }
  EXPECT_GT(largest, Tolerance(TermSize(*right, data)));
}

}  // namespace
}  // namespace orrery::trainer

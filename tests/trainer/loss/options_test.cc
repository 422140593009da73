#include "trainer/loss/options.h"

#include <gtest/gtest.h>

#include <cmath>

#include "orchestrator/base/status.h"
#include "trainer/loss/loss.h"

namespace orrery::trainer {
namespace {

std::string ErrorOf(const LossOptions& options) {
  const auto loss = MakePolicyLoss(options);
  return loss.ok() ? "" : StatusText(loss.status());
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(OptionsTest, NamesOfTheYaml) {
  EXPECT_EQ(*ParseAlgorithm("reinforce_plus_plus"), Algorithm::kReinforcePlusPlus);
  EXPECT_EQ(*ParseAggregation("seq_mean_token_sum_norm"), Aggregation::kSeqMeanTokenSumNorm);
  EXPECT_EQ(*ParseKlKind("low_var_kl"), KlKind::kLowVar);
  EXPECT_EQ(*ParseCorrectionKind("icepop"), CorrectionKind::kIcePop);
  EXPECT_EQ(*ParseCorrectionLevel("geometric"), CorrectionLevel::kGeometric);
  EXPECT_EQ(*ParseCorrectionMode("mask"), CorrectionMode::kMask);
}

TEST(OptionsTest, AnUnknownNameListsTheKnownOnes) {
  const std::string message = StatusText(ParseAlgorithm("gpro").status());
  EXPECT_MENTIONS(message, "'gpro'");
  EXPECT_MENTIONS(message, "grpo");
  EXPECT_MENTIONS(message, "cispo");
  EXPECT_FALSE(ParseAggregation("").ok());
  EXPECT_FALSE(ParseKlKind("K1").ok());
}

TEST(OptionsTest, PublishedOptionsCanBeUsed) {
  for (const char* name :
       {"grpo", "dr_grpo", "dapo", "rloo", "reinforce_plus_plus", "gspo", "cispo", "reinforce"}) {
    const LossOptions options = PublishedOptions(*ParseAlgorithm(name));
    EXPECT_EQ(ErrorOf(options), "") << name;
    EXPECT_EQ(options.algorithm, *ParseAlgorithm(name));
  }
  EXPECT_EQ(PublishedOptions(Algorithm::kDapo).aggregation, Aggregation::kTokenMean);
  EXPECT_EQ(PublishedOptions(Algorithm::kDapo).clip_high, 0.28);
  EXPECT_EQ(PublishedOptions(Algorithm::kDrGrpo).aggregation, Aggregation::kSeqMeanTokenSumNorm);
  EXPECT_LT(PublishedOptions(Algorithm::kGspo).clip_high, 1e-3);
}

TEST(OptionsTest, BadValuesAreNamed) {
  EXPECT_MENTIONS(ErrorOf({.clip_low = -0.1}), "clip_low");
  EXPECT_MENTIONS(ErrorOf({.clip_high = NAN}), "clip_high");
  EXPECT_MENTIONS(ErrorOf({.dual_clip_c = 1}), "dual_clip");
  EXPECT_MENTIONS(ErrorOf({.algorithm = Algorithm::kCispo, .dual_clip_c = 3}), "cispo");
  EXPECT_MENTIONS(ErrorOf({.kl = KlKind::kK3, .kl_coef = -1}), "kl_coefficient");
  EXPECT_MENTIONS(ErrorOf({.entropy_coef = INFINITY}), "entropy_coefficient");
  EXPECT_MENTIONS(ErrorOf({.opsm_delta = -1}), "opsm_delta");
}

TEST(OptionsTest, SettingsWithoutEffectAreRefused) {
  EXPECT_MENTIONS(ErrorOf({.kl_coef = 0.1}), "kl is none");
  EXPECT_MENTIONS(ErrorOf({.unbiased_kl = true}), "kl is none");
  LossOptions options;
  options.correction = {.kind = CorrectionKind::kTis, .veto_threshold = 1e-4};
  EXPECT_MENTIONS(ErrorOf(options), "mis");
}

TEST(OptionsTest, BoundsMustBeInOrder) {
  LossOptions options;
  options.correction = {.kind = CorrectionKind::kTis, .low = 2, .high = 2};
  EXPECT_MENTIONS(ErrorOf(options), "correction_low");
  options.correction = {.kind = CorrectionKind::kMis, .reject = true, .reject_low = 3};
  EXPECT_MENTIONS(ErrorOf(options), "reject_low");
}

}  // namespace
}  // namespace orrery::trainer

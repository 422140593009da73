#include "trainer/loss/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

TEST(ScheduleTest, ConstantWithWarmUp) {
  const ScheduleOptions options{.learning_rate = 4e-4, .warmup_steps = 4};
  const std::vector<double> expected = {1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4};
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_DOUBLE_EQ(LearningRate(options, static_cast<int64_t>(s)), expected[s]) << s;
  }
  EXPECT_EQ(LearningRate({.learning_rate = 3e-6}, 0), 3e-6);
  EXPECT_EQ(LearningRate({.learning_rate = 3e-6}, 1000000), 3e-6);
}

TEST(ScheduleTest, LinearByHand) {
  // Warm-up 2, decay 4 from 1 to 0.2: 0.5, 1, then 1, 0.8, 0.6, 0.4, then 0.2 for good.
  const ScheduleOptions options{.kind = ScheduleKind::kLinear,
                                .learning_rate = 1,
                                .min_learning_rate = 0.2,
                                .warmup_steps = 2,
                                .decay_steps = 4};
  const std::vector<double> expected = {0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2};
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_NEAR(LearningRate(options, static_cast<int64_t>(s)), expected[s], 1e-15) << s;
  }
}

TEST(ScheduleTest, CosineByHand) {
  // Decay 4 from 1 to 0: (1 + cos(pi k / 4)) / 2.
  const ScheduleOptions options{
      .kind = ScheduleKind::kCosine, .learning_rate = 1, .decay_steps = 4};
  const double half_root = std::sqrt(0.5);
  const std::vector<double> expected = {1, (1 + half_root) / 2, 0.5, (1 - half_root) / 2, 0, 0};
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_NEAR(LearningRate(options, static_cast<int64_t>(s)), expected[s], 1e-15) << s;
  }
}

TEST(ScheduleTest, NeverLeavesItsBoundsAndNeverRisesAfterWarmUp) {
  for (const ScheduleKind kind : {ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    const ScheduleOptions options{.kind = kind,
                                  .learning_rate = 1e-3,
                                  .min_learning_rate = 1e-4,
                                  .warmup_steps = 7,
                                  .decay_steps = 100};
    for (int64_t s = 0; s < 150; ++s) {
      const double rate = LearningRate(options, s);
      EXPECT_GT(rate, 0);
      EXPECT_LE(rate, 1e-3 * (1 + 1e-15));
      if (s >= 7) {
        EXPECT_GE(rate, 1e-4 * (1 - 1e-15));
        EXPECT_LE(LearningRate(options, s + 1), rate);
      }
    }
  }
}

TEST(ScheduleTest, BadOptionsAreNamed) {
  const auto message = [](const ScheduleOptions& options) {
    return StatusText(CheckSchedule(options));
  };
  EXPECT_TRUE(CheckSchedule({}).ok());
  EXPECT_NE(message({.learning_rate = NAN}).find("learning_rate"), std::string::npos);
  EXPECT_NE(message({.learning_rate = -1}).find("learning_rate"), std::string::npos);
  EXPECT_NE(message({.warmup_steps = -1}).find("warmup_steps"), std::string::npos);
  EXPECT_NE(message({.kind = ScheduleKind::kLinear}).find("decay_steps"), std::string::npos);
  EXPECT_NE(message({.kind = ScheduleKind::kCosine,
                     .learning_rate = 1,
                     .min_learning_rate = 2,
                     .decay_steps = 5})
                .find("min_learning_rate"),
            std::string::npos);
}

TEST(ScheduleTest, Names) {
  EXPECT_EQ(*ParseScheduleKind("cosine"), ScheduleKind::kCosine);
  EXPECT_EQ(*ParseScheduleKind("constant"), ScheduleKind::kConstant);
  EXPECT_EQ(*ParseScheduleKind("linear"), ScheduleKind::kLinear);
  EXPECT_NE(StatusText(ParseScheduleKind("Cosine").status()).find("'Cosine'"), std::string::npos);
}

TEST(ScheduleDeathTest, StepsAreCountedFromZero) { EXPECT_DEATH(LearningRate({}, -1), "step"); }

}  // namespace
}  // namespace orrery::trainer

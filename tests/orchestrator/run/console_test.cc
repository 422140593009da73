#include "orchestrator/run/console.h"

#include <cmath>
#include <limits>

#include "orchestrator/run/metric_names.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::HasSubstr;
using testing::Not;

StepMetrics Step(int64_t step) {
  StepMetrics metrics(step);
  metrics.Set(metric::kRawReward, 0.53125);
  metrics.Set(metric::kResponseLenMean, 48.25);
  metrics.Set(metric::kRolloutTokensPerSecond, 12400);
  metrics.Set("eval/gsm8k/accuracy", 0.5);
  return metrics;
}

// What a console writes to a file, with a clock that the body moves.
template <typename Body>
std::string Written(ConsoleTraits traits, const Body& body) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  double now = 100;
  {
    Console console(file, traits, 1, 60, [&now] { return now; });
    body(console, now);
  }
  std::fclose(file);
  return Get(folder / "out");
}

TEST(Console, APlainLineAStepWhereThereIsNoTerminal) {
  const std::string out = Written({}, [](Console& console, double& now) {
    console.Stage("rollout 3/256");
    now += 2;
    ASSERT_OK(console.Write(Step(1)));
    console.Note("checkpoint of step 1");
    now += 4;
    ASSERT_OK(console.Write(Step(60)));
  });
  EXPECT_EQ(out,
            "step  1/60  reward 0.531  len 48.2  eval/gsm8k 0.500  12.4k tok/s  2 s  left 1:58\n"
            "checkpoint of step 1\n"
            "step 60/60  reward 0.531  len 48.2  eval/gsm8k 0.500  12.4k tok/s  4 s\n");
}

TEST(Console, ATerminalLineIsRedrawnAndNeverWraps) {
  const std::string out =
      Written({.terminal = true, .columns = 40}, [](Console& console, double& now) {
        now += 2;
        ASSERT_OK(console.Write(Step(1)));
        now += 1;
        console.Stage("rollout 3/256");
        console.Stage("rollout 4/256");  // too soon after the last
        console.Note("a note");
      });
  const std::string line = "\r\x1b[Kstep  1/60  reward 0.531  len 48.2  eva";
  EXPECT_EQ(out, line + line + "\r\x1b[Ka note\n" + line + "\n");
}

TEST(Console, ForecastIsTheMedian) {
  Written({}, [](Console& console, double& now) {
    EXPECT_LT(console.SecondsLeft(), 0);
    for (int64_t step = 1; step <= 10; ++step) {
      now += step == 4 ? 500 : 3;
      ASSERT_OK(console.Write(Step(step)));
    }
    EXPECT_DOUBLE_EQ(console.SecondsLeft(), 150);
  });
}

TEST(Console, Formats) {
  EXPECT_EQ(FormatDuration(7.4), "0:07");
  EXPECT_EQ(FormatDuration(59.6), "1:00");
  EXPECT_EQ(FormatDuration(3 * 3600 + 65), "3:01:05");
  EXPECT_EQ(FormatDuration(4 * 86400 + 6 * 3600), "4d 06:00");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatDuration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(FormatCount(812), "812");
  EXPECT_EQ(FormatCount(999.9), "1k");
  EXPECT_EQ(FormatCount(12400), "12.4k");
  EXPECT_EQ(FormatCount(3.1e6), "3.1M");
  EXPECT_EQ(FormatCount(1e300).back(), 'T');
  EXPECT_EQ(FormatValue(0.000012), "1.20e-05");
  EXPECT_EQ(FormatValue(-0.25), "-0.25");
  EXPECT_EQ(FormatValue(4096), "4096");
  EXPECT_EQ(FormatValue(std::nan("")), "-");
}

TEST(Console, AFileIsNoTerminal) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  EXPECT_FALSE(TraitsOf(file).terminal);
  EXPECT_FALSE(TraitsOf(file).color);
  std::fclose(file);
}

}  // namespace
}  // namespace orrery::run

#include "orchestrator/run/metrics.h"

#include <bit>
#include <cmath>
#include <limits>

#include "orchestrator/run/metric_names.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::HasSubstr;

TEST(Metrics, LineKeepsOrderAndBits) {
  StepMetrics metrics(3);
  metrics.Set("b", 0.1);
  metrics.Set("a", 1e300);
  metrics.Set("tiny", std::numeric_limits<double>::denorm_min());
  metrics.Set("b", 0.30000000000000004);
  EXPECT_EQ(ToJsonLine(metrics),
            "{\"step\":3,\"b\":0.30000000000000004,\"a\":1e+300,\"tiny\":5e-324}");
  ASSERT_OK_AND_ASSIGN(const StepMetrics back, ParseMetricsLine(ToJsonLine(metrics)));
  EXPECT_EQ(back.step(), 3);
  EXPECT_EQ(back.values(), metrics.values());
}

TEST(Metrics, NotFiniteBecomesNullAndAnEvent) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(folder / "events.jsonl"));
  ASSERT_OK_AND_ASSIGN(const auto sink, JsonlSink::Open(folder / "metrics.jsonl", journal.get()));
  StepMetrics metrics(4);
  metrics.Set("train/loss", std::nan(""));
  metrics.Set("train/grad_norm", -std::numeric_limits<double>::infinity());
  metrics.Set("train/lr", 1);
  ASSERT_OK(sink->Write(metrics));
  ASSERT_OK(sink->Flush());
  EXPECT_EQ(Get(folder / "metrics.jsonl"),
            "{\"step\":4,\"train/loss\":null,\"train/grad_norm\":null,\"train/lr\":1}\n");
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> back, ReadMetrics(folder.path()));
  EXPECT_TRUE(std::isnan(back.at(0).Get("train/loss", 0)));
  ASSERT_OK_AND_ASSIGN(const std::vector<Event> events, ReadEvents(folder / "events.jsonl"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, "metric_not_finite");
  EXPECT_EQ(events[1].step, 4);
  EXPECT_EQ(events[1].text, "train/grad_norm is -inf");
}

TEST(Metrics, ReadingNamesTheLine) {
  const TempFolder folder;
  const auto error = [&](const std::string& content) {
    Put(folder / "metrics.jsonl", content);
    return StatusText(ReadMetrics(folder.path()).status());
  };
  EXPECT_THAT(error("{\"step\":1}\n{\"step\":\n{\"step\":3}\n"),
              HasSubstr("metrics.jsonl line 2: "));
  EXPECT_THAT(error("{\"step\":1}\n{}\n"), HasSubstr("line 2: 'step' is missing"));
  EXPECT_THAT(error("[]\n"), HasSubstr("line 1: expected an object"));
  EXPECT_THAT(error("{\"step\":1.5}\n"), HasSubstr("line 1: step: expected a whole number"));
  EXPECT_THAT(error("{\"step\":1,\"x\":[]}\n"), HasSubstr("line 1: x: expected a number"));
  EXPECT_THAT(error("{\"step\":2}\n{\"step\":2}\n"), HasSubstr("line 2: step 2 after step 2"));
  EXPECT_THAT(error("\n"), HasSubstr("line 1: "));
  EXPECT_EQ(error("{\"step\":1}\n{\"step\":2"), "");
  EXPECT_EQ(error(""), "");
  EXPECT_FALSE(ReadMetrics(folder / "none").ok());
}

TEST(Metrics, RandomDoublesComeBackBitForBit) {
  const TempFolder folder;
  RandomStream random(5);
  ASSERT_OK_AND_ASSIGN(const auto sink, JsonlSink::Open(folder / "metrics.jsonl", nullptr));
  std::vector<StepMetrics> written;
  for (int64_t step = 1; step <= 200; ++step) {
    StepMetrics metrics(step);
    for (int i = 0; i < 20; ++i) {
      const auto value = std::bit_cast<double>(random.Next());
      metrics.Set("m/" + std::to_string(i), std::isfinite(value) ? value : 0.5);
    }
    ASSERT_OK(sink->Write(metrics));
    written.push_back(metrics);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> read, ReadMetrics(folder.path()));
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i].values(), written[i].values());
}

TEST(Metrics, NamesOfEvaluations) {
  EXPECT_EQ(metric::Eval("gsm8k", "accuracy"), "eval/gsm8k/accuracy");
  EXPECT_TRUE(metric::IsTiming(metric::kRssBytes));
  EXPECT_FALSE(metric::IsTiming(metric::kRawReward));
}

}  // namespace
}  // namespace orrery::run

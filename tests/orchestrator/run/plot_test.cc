#include "orchestrator/run/plot.h"

#include <cmath>
#include <limits>

#include "orchestrator/base/utf8.h"
#include "orchestrator/run/inspect.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/run_directory.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::HasSubstr;
using testing::Not;

Series Line(const std::string& name, double from, double to) {
  Series series{name, {}, {}};
  for (int i = 0; i < 50; ++i) {
    series.x.push_back(i + 1);
    series.y.push_back(from + (to - from) * i / 49);
  }
  return series;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int Columns(const std::string& line) {
  int columns = 0;
  for (size_t i = 0; i < line.size(); i += std::max<size_t>(1, Utf8CharacterSize(line, i)))
    ++columns;
  return columns;
}

TEST(Chart, ARisingLineInAscii) {
  ChartStyle style{.columns = 28, .rows = 5, .unicode = false, .color = false};
  EXPECT_EQ(DrawChart("reward", {Line("a", 0, 1)}, style),
            "reward\n"
            "  1 +                  ****\n"
            "    |             ******\n"
            "0.5 +        ******\n"
            "    |   ******\n"
            "  0 +****\n"
            "    +----------------------\n"
            "     1                   50\n");
}

TEST(Chart, FitsItsColumns) {
  for (const bool unicode : {true, false}) {
    const std::string chart =
        DrawChart("x", {Line("a", -1e-9, 12345)}, {.columns = 60, .rows = 8, .unicode = unicode});
    for (const std::string& line : LinesOf(chart)) EXPECT_LE(Columns(line), 60) << line;
    EXPECT_EQ(FindInvalidUtf8(chart), std::string::npos);
    EXPECT_THAT(chart, Not(HasSubstr("\x1b")));
  }
}

TEST(Chart, SeveralSeriesAreToldApart) {
  const std::vector<Series> two = {Line("first", 0, 1), Line("second", 1, 0)};
  const std::string plain = DrawChart("x", two, {.columns = 40});
  EXPECT_THAT(plain, HasSubstr("  a first\n  b second\n"));
  EXPECT_THAT(plain, HasSubstr("aaa"));
  EXPECT_THAT(plain, HasSubstr("bbb"));
  const std::string color = DrawChart("x", two, {.columns = 40, .color = true});
  EXPECT_THAT(color, HasSubstr("\x1b[36m"));
  EXPECT_THAT(color, HasSubstr("\x1b[33m"));
}

TEST(Chart, AFlatLineIsNamedOnce) {
  for (const int rows : {3, 4, 5, 12}) {
    const std::string chart = DrawChart("kl", {{"a", {1, 2, 3}, {0.5, 0.5, 0.5}}},
                                        {.columns = 28, .rows = rows, .unicode = false});
    const std::vector<std::string> lines = LinesOf(chart);
    const size_t middle = 1 + static_cast<size_t>(rows) / 2;
    for (size_t i = 1; i <= static_cast<size_t>(rows); ++i) {
      EXPECT_EQ(lines[i], i == middle ? "0.5 +**********************" : "    |") << rows;
    }
  }
}

TEST(Chart, NamesCannotSpeakToTheTerminal) {
  const std::string chart =
      DrawChart("a\x1b[2Jb", {Line("c\x1b]0;d\x07", 0, 1), Line("e\nf\xff", 1, 0)}, {});
  EXPECT_EQ(chart.find('\x1b'), std::string::npos);
  EXPECT_THAT(chart, HasSubstr("a\\x1b[2Jb\n"));
  EXPECT_THAT(chart, HasSubstr("  a c\\x1b]0;d\\x07\n  b e\\nf\\xff\n"));
}

TEST(Chart, StrangeValuesAreNoCrash) {
  const double inf = std::numeric_limits<double>::infinity();
  const double big = std::numeric_limits<double>::max();
  EXPECT_EQ(DrawChart("x", {}, {}), "x: no values\n");
  EXPECT_EQ(DrawChart("x", {{"a", {1, 2}, {NAN, inf}}}, {}), "x: no values\n");
  for (const Series& series :
       {Series{"one", {3}, {7}}, Series{"flat", {1, 2, 3}, {0, 0, 0}},
        Series{"gap", {1, 2, 3}, {1, NAN, 2}}, Series{"huge", {1, 2}, {-big, big}},
        Series{"tiny", {1, 2}, {0, 5e-324}}, Series{"same step", {2, 2}, {1, 2}}}) {
    for (const int columns : {-5, 0, 10, 300}) {
      EXPECT_THAT(DrawChart("x", {series}, {.columns = columns, .rows = columns}),
                  HasSubstr("x\n"));
    }
  }
}

std::string ReadBack(const std::function<void(std::FILE*)>& print) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  print(file);
  std::fclose(file);
  return Get(folder / "out");
}

TEST(Plot, RunsOverlaidAndUnknownMetrics) {
  const TempFolder folder;
  for (const std::string name : {"a", "b"}) {
    std::filesystem::create_directories(folder / name);
    Put((folder / name) + "/metrics.jsonl",
        "{\"step\":1,\"rollout/raw_reward\":0.1,\"train/loss\":null}\n"
        "{\"step\":2,\"rollout/raw_reward\":0.4,\"train/loss\":null}\n");
  }
  const std::vector<std::string> runs = {folder / "a", folder / "b"};
  const std::string out = ReadBack([&](std::FILE* file) { ASSERT_OK(PlotRuns(runs, {}, file)); });
  EXPECT_THAT(out, HasSubstr("rollout/raw_reward\n"));
  EXPECT_THAT(out, HasSubstr("train/loss: no values\n"));
  EXPECT_THAT(out, HasSubstr("b " + (folder / "b")));
  PlotOptions options;
  options.metrics = {"reward"};
  EXPECT_THAT(StatusText(PlotRuns(runs, options, stderr)),
              HasSubstr("did you mean rollout/raw_reward?"));
  Put((folder / "a") + "/metrics.jsonl", "");
  EXPECT_THAT(StatusText(PlotRuns(runs, {}, stderr)), HasSubstr("no step"));
}

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "samples");
    ASSERT_OK(WriteSamples(folder_.path(), 3, RandomGroups(1), TestPieces));
    ASSERT_OK(WriteSamples(folder_.path(), 12, RandomGroups(2), TestPieces));
  }
  std::string Print(const SampleFilter& filter, bool color = false) {
    return ReadBack([&](std::FILE* file) {
      ConsoleTraits traits;
      traits.color = color;
      const auto matched = PrintSamples(folder_.path(), filter, traits, file);
      status_ = matched.status();
      matched_ = matched.value_or(-1);
    });
  }
  TempFolder folder_;
  absl::Status status_;
  int64_t matched_ = 0;
};

TEST_F(Inspect, ShowsTheLastStepByDefault) {
  SampleFilter filter;
  filter.limit = 2;
  const std::string out = Print(filter);
  ASSERT_OK(status_);
  EXPECT_EQ(matched_, 15);
  EXPECT_THAT(out, HasSubstr("step 12  group 2000  sample 1/5  reward 0."));
  EXPECT_THAT(out, HasSubstr("[prompt]\n"));
  EXPECT_THAT(out, HasSubstr("[policy]\n"));
  EXPECT_THAT(out, HasSubstr("[tool]\n"));
  EXPECT_THAT(out, HasSubstr("15 of 15 samples match, the first 2 are shown\n"));
  EXPECT_THAT(out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(Print(filter, true), HasSubstr("\x1b[36m[policy]\x1b[0m"));
}

TEST_F(Inspect, SaysWhereNothingCanBeShown) {
  SampleFilter filter;
  filter.limit = -1;
  EXPECT_EQ(Print(filter), "");
  EXPECT_THAT(StatusText(status_), HasSubstr("--limit -1"));
  filter.limit = 1;
  EXPECT_THAT(Print(filter), Not(HasSubstr("log-probs")));
  filter.top_logprobs = true;
  EXPECT_THAT(Print(filter), HasSubstr("no top log-probs are recorded here"));
  EXPECT_THAT(StatusText(PrintSamples(folder_ / "samples", {}, {}, stderr).status()),
              HasSubstr("is no run directory"));
}

TEST_F(Inspect, Filters) {
  SampleFilter filter;
  filter.step = 3;
  filter.finish_reason = FinishReason::kLength;
  EXPECT_THAT(Print(filter), HasSubstr("3 of 15 samples match\n"));
  filter.group_id = 1001;
  Print(filter);
  EXPECT_EQ(matched_, 1);
  filter = {};
  filter.text = "nowhere to be found";
  EXPECT_EQ(Print(filter), "0 of 15 samples match\n");
  filter = {};
  filter.min_reward = 0.5;
  Print(filter);
  const int64_t above = matched_;
  filter.min_reward.reset();
  filter.max_reward = 0.5;
  Print(filter);
  EXPECT_EQ(above + matched_, 15);
  EXPECT_GT(above, 0);
}

TEST_F(Inspect, MissingStepsAreErrors) {
  SampleFilter filter;
  filter.step = 5;
  Print(filter);
  EXPECT_THAT(StatusText(status_),
              HasSubstr("no samples of step 5: it has those of 2 steps from 3 to 12"));
  EXPECT_FALSE(PrintSamples(folder_ / "none", {}, {}, stderr).ok());
}

TEST(ForTerminal, LetsNoControlCodeThrough) {
  EXPECT_EQ(ForTerminal("a\x1b[2J\nb\tc\r\x07\x7f"), "a\\x1b[2J\nb\tc\\x0d\\x07\\x7f");
  EXPECT_EQ(ForTerminal("\xc2\x9b"
                        "31m \xc2\xa0 \xff"),
            "\\x9b31m \xc2\xa0 \xef\xbf\xbd");
}

}  // namespace
}  // namespace orrery::run

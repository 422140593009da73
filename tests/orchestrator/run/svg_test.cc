#include "orchestrator/run/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

#include "orchestrator/run/metrics.h"
#include "orchestrator/run/plot.h"
#include "orchestrator/run/run_directory.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Series Wave(const std::string& name, int points, double phase) {
  Series series{name, {}, {}};
  for (int i = 0; i < points; ++i) {
    series.x.push_back(i + 1);
    series.y.push_back(0.5 + 0.4 * std::sin(0.1 * i + phase));
  }
  return series;
}

std::vector<std::smatch> Matches(const std::string& text, const std::regex& what) {
  return {std::sregex_iterator(text.begin(), text.end(), what), std::sregex_iterator()};
}

struct Point {
  double x, y;
};

// Of all curves. Not by one regular expression: those of the library recurse for every character.
std::vector<Point> CurvePoints(const std::string& svg) {
  std::vector<Point> points;
  const std::string open = " points=\"";
  for (size_t at = svg.find(open); at != std::string::npos; at = svg.find(open, at)) {
    at += open.size();
    const size_t end = svg.find('"', at);
    while (at < end) {
      Point p;
      size_t x_size = 0, y_size = 0;
      p.x = std::stod(svg.substr(at, 30), &x_size);
      EXPECT_EQ(svg[at + x_size], ',');
      p.y = std::stod(svg.substr(at + x_size + 1, 30), &y_size);
      points.push_back(p);
      at += x_size + 1 + y_size + 1;
    }
  }
  return points;
}

double Height(const std::string& svg) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(svg, found, std::regex("viewBox=\"0 0 720 ([0-9]+)\"")));
  return std::stod(found[1]);
}

// Every tag is closed, in order; what a reader of XML refuses first.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t begin = svg.find('<'); begin != std::string::npos; begin = svg.find('<', begin + 1)) {
    const size_t end = svg.find_first_of("<>", begin + 1);
    ASSERT_NE(end, std::string::npos);
    ASSERT_EQ(svg[end], '>');
    const std::string tag = svg.substr(begin + 1, end - begin - 1);
    const bool closes = tag[0] == '/';
    const std::string name =
        tag.substr(closes ? 1 : 0, tag.find_first_of(" /", 1) - (closes ? 1 : 0));
    if (closes) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(Matches(svg, std::regex("&(?!lt;|gt;|amp;|quot;|#[0-9]+;)")).empty());
}

TEST(Svg, TheLegendIsBelowEverythingAndTheCurvesInsideTheirPlot) {
  for (const int count : {1, 2, 5, 11}) {
    Panel panel{"reward", {}};
    for (int i = 0; i < count; ++i) panel.series.push_back(Wave("run" + std::to_string(i), 60, i));
    const std::string svg = DrawSvg({panel, panel});
    ExpectWellFormed(svg);
    const std::vector<Point> points = CurvePoints(svg);
    EXPECT_EQ(points.size(), static_cast<size_t>(2 * 60 * count));
    double lowest = 0;
    for (const Point& p : points) {
      EXPECT_GE(p.x, 60);
      EXPECT_LE(p.x, 704);
      EXPECT_GE(p.y, 28);  // below the title
      lowest = std::max(lowest, p.y);
    }
    for (int i = 0; i < count; ++i) {
      std::smatch found;
      const std::regex name("y=\"([0-9.]+)\"[^>]*>run" + std::to_string(i) + "<");
      ASSERT_EQ(std::regex_search(svg, found, name), count > 1);
      if (count == 1) continue;
      EXPECT_GT(std::stod(found[1]), lowest + 28);  // and the labels of the steps
      EXPECT_LT(std::stod(found[1]), Height(svg));
    }
  }
}

TEST(Svg, AStepIsAtOnePlaceInEveryPanel) {
  const std::string svg =
      DrawSvg({{"long", {{"a", {1, 50}, {1, 2}}}}, {"short", {{"a", {0, 10, 25}, {1, 2, 3}}}}});
  const std::vector<Point> points = CurvePoints(svg);
  ASSERT_EQ(points.size(), 5u);
  EXPECT_NEAR(points[1].x, 704, 0.1);
  EXPECT_NEAR(points[2].x, 60, 0.1);
  EXPECT_NEAR(points[4].x, (60 + 704) / 2., 0.1);
}

TEST(Svg, NothingButZerosLieOnTheGround) {
  const std::vector<Point> points = CurvePoints(DrawSvg({{"kl", {{"a", {1, 2}, {0, 0}}}}}));
  ASSERT_EQ(points.size(), 2u);
  for (const Point& p : points) EXPECT_NEAR(p.y, 228, 0.1);
}

TEST(Svg, GapsAreGapsAndASinglePointIsADot) {
  Series series{"a", {1, 2, 3, 4, 5, 6}, {1, 2, kNan, 3, kNan, HUGE_VAL}};
  const std::string svg = DrawSvg({{"x", {series}}});
  EXPECT_EQ(CurvePoints(svg).size(), 2u);
  EXPECT_EQ(Matches(svg, std::regex("<circle")).size(), 1u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, IntervalsStayInsideThePlot) {
  Series series{"a", {0, 50, 100}, {0.5, 0.6, 0.7}, {0.1, 0.5, 0.6}, {0.9, 0.7, 1.3}};
  const std::string svg = DrawSvg({{"eval", {series}}});
  const std::regex bar("<line x1=\"([0-9.]+)\" x2=\"\\1\" y1=\"([0-9.]+)\" y2=\"([0-9.]+)\"");
  const std::vector<std::smatch> bars = Matches(svg, bar);
  ASSERT_EQ(bars.size(), 3u);
  for (const std::smatch& m : bars) {
    EXPECT_LE(std::stod(m[2]), 228.05);
    EXPECT_GE(std::stod(m[3]), 27.95);
    EXPECT_GT(std::stod(m[2]), std::stod(m[3]));
  }
}

TEST(Svg, AnyNumbersMakeAPicture) {
  const double most = std::numeric_limits<double>::max();
  for (const auto& y : std::vector<std::vector<double>>{{},
                                                        {kNan},
                                                        {0},
                                                        {0, 0, 0},
                                                        {1, 1 + 1e-15},
                                                        {1e-300, 2e-300},
                                                        {5e-324, 0},
                                                        {-1e300, 1e300},
                                                        {-most, most},
                                                        {1e9, 1e9 + 1},
                                                        {HUGE_VAL, -HUGE_VAL}}) {
    Series series{"a", {}, y};
    for (size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
    const std::string svg = DrawSvg({{"x", {series, series}}});
    ExpectWellFormed(svg);
    EXPECT_LT(svg.size(), 20'000u);
    EXPECT_TRUE(Matches(svg, std::regex("nan|inf")).empty()) << svg;
    for (const Point& p : CurvePoints(svg)) {
      EXPECT_GE(p.y, 27.9);
      EXPECT_LE(p.y, 228.1);
    }
  }
  ExpectWellFormed(DrawSvg({}));
  ExpectWellFormed(DrawSvg({{"x", {}}}));
}

TEST(Svg, TextOfARunCannotLeaveItsPlace) {
  const std::string attack = "</text><script>x</script>&\x01\xff\"" + std::string(300, 'a') + "end";
  const std::string svg =
      DrawSvg({{attack, {Wave(attack, 3, 0), Wave("\xc3\xa9" + std::string(90, '\xbf'), 3, 0)}}});
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_EQ(svg.find('\xff'), std::string::npos);
  EXPECT_THAT(svg, HasSubstr("aaaend</text>"));
}

TEST(Svg, LongRunsStaySmall) {
  const std::string svg = DrawSvg({{"reward", {Wave("a", 100'000, 0)}}});
  EXPECT_LT(svg.size(), 40'000u);
  EXPECT_GT(CurvePoints(svg).size(), 1000u);
  EXPECT_NEAR(CurvePoints(svg).back().x, 704, 0.1);
}

TEST(Svg, OfRunsHasTheirMetricsAndTheIntervalsOfAccuracies) {
  const TempFolder folder;
  for (const char* run : {"one", "two"}) {
    ASSERT_OK_AND_ASSIGN(const auto directory, RunDirectory::Create(folder / run, "a: 1\n"));
    ASSERT_OK_AND_ASSIGN(const auto sink, JsonlSink::Open(directory->paths().metrics(), nullptr));
    for (int64_t step = 0; step <= 4; ++step) {
      StepMetrics m(step);
      m.Set("rollout/raw_reward", 0.1 * static_cast<double>(step));
      if (step % 2 == 0) {
        m.Set("eval/test/accuracy", 0.5);
        m.Set("eval/test/accuracy_low", 0.4);
        m.Set("eval/test/accuracy_high", 0.6);
      }
      ASSERT_OK(sink->Write(m));
    }
  }
  const std::string path = folder / "picture.svg";
  ASSERT_OK(WriteSvg({folder / "one", folder / "two"}, {}, path));
  const std::string svg = Get(path);
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, HasSubstr(">rollout/raw_reward</text>"));
  EXPECT_THAT(svg, HasSubstr(">eval/test/accuracy</text>"));
  EXPECT_THAT(svg, HasSubstr("one</text>"));
  EXPECT_EQ(Matches(svg, std::regex("<circle")).size(), 6u);
  EXPECT_FALSE(WriteSvg({folder / "one"}, {.metrics = {"no/such"}}, path).ok());
  EXPECT_FALSE(WriteSvg({folder / "none"}, {}, path).ok());
  EXPECT_FALSE(WriteSvg({folder / "one"}, {}, folder / "no/such/folder.svg").ok());
  EXPECT_EQ(Get(path), svg) << "what failed wrote nothing";
}

}  // namespace
}  // namespace orrery::run

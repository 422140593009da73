#include "orchestrator/run/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "orchestrator/run/markup.h"

namespace orrery::run {
namespace {

constexpr double kWidth = 720, kPlotHeight = 200;
constexpr double kLeft = 60, kRight = 16;   // beside a plot: labels of the axis, half a label
constexpr double kAbove = 28, kBelow = 28;  // title, labels of the steps
constexpr double kLegendLine = 18;
constexpr size_t kMaxPoints = 1500;
constexpr size_t kMaxNameBytes = 90;
// Told apart on white, also in grey and by most people who see fewer colours.
constexpr const char* kColors[] = {"#2a5db0", "#b0512a", "#2a8a4a", "#8a3ab0",
                                   "#8a7a1a", "#1a8a9a", "#c03a6a", "#555555"};

const char* ColorOf(size_t series) { return kColors[series % std::size(kColors)]; }

// The end of a long name: folders of runs differ there.
std::string Shorten(const std::string& name) {
  if (name.size() <= kMaxNameBytes) return name;
  size_t begin = name.size() - kMaxNameBytes;
  while (begin < name.size() && (name[begin] & 0xc0) == 0x80) ++begin;
  return "..." + name.substr(begin);
}

// An axis with round numbers at its ticks, as a range of values over a range of pixels.
struct Axis {
  double low = 0, high = 1, step = 1;
  double from = 0, to = 1;

  double At(double value) const { return from + (value - low) / (high - low) * (to - from); }
  // With as many figures as tell it from its neighbours.
  std::string Label(double tick) const {
    if (std::abs(tick) < step / 2) return "0";
    const double figures = std::log10(std::max(std::abs(low), std::abs(high)) / step) + 2;
    return fmt::format("{:.{}g}", tick, std::clamp(static_cast<int>(figures), 4, 15));
  }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    const double first = std::ceil(low / step - 1e-9);
    for (double i = first; i * step <= high + step * 1e-9; ++i) ticks.push_back(i * step + 0.0);
    return ticks;
  }
};

// 1, 2 or 5 times a power of ten: about `count` of them in the range.
double RoundStep(double range, double count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// Differences below it cannot be divided by.
constexpr double kSmallest = 1e-290;

struct Bounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Add(double value) {
    // What is drawn is subtracted: half of the largest number is the limit.
    if (!std::isfinite(value) || std::abs(value) > 1e300) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // Wide enough for a picture where all values are one, or differ by their rounding alone.
  void Widen() {
    const double size = std::max(std::abs(low), std::abs(high));
    if (high - low > std::max(size * 1e-12, kSmallest)) return;
    if (size <= kSmallest) {  // nothing of it is below 0 as a rule
      low = 0;
      high = 1;
      return;
    }
    low -= size / 10;
    high += size / 10;
  }
};

Axis MakeAxis(Bounds bounds, double count, double from, double to, bool whole_ticks) {
  if (bounds.empty()) bounds = {0, 1};
  bounds.Widen();
  Axis axis{bounds.low, bounds.high, RoundStep(bounds.high - bounds.low, count), from, to};
  if (whole_ticks) {
    axis.low = std::floor(axis.low / axis.step + 1e-9) * axis.step;
    axis.high = std::ceil(axis.high / axis.step - 1e-9) * axis.step;
  } else {
    axis.step = std::max(1.0, axis.step);  // steps are whole
  }
  return axis;
}

bool HasIntervals(const Series& series) { return series.low.size() == series.x.size(); }

// Means over stretches of equally many points, where there are too many to see.
Series Thin(const Series& series) {
  if (series.x.size() <= kMaxPoints || HasIntervals(series)) return series;
  const size_t stretch = (series.x.size() + kMaxPoints - 1) / kMaxPoints;
  Series thin{series.name, {}, {}};
  for (size_t begin = 0; begin < series.x.size(); begin += stretch) {
    const size_t end = std::min(series.x.size(), begin + stretch);
    double sum = 0, count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.y[i])) continue;
      sum += series.y[i];
      ++count;
    }
    thin.x.push_back(series.x[end - 1]);
    thin.y.push_back(sum / count);  // 0 / 0: a gap
  }
  return thin;
}

void DrawAxes(const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  for (const double tick : y.Ticks()) {
    fmt::format_to(to,
                   "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#555\">{}</text>\n",
                   x.from, x.to, y.At(tick), y.At(tick), x.from - 8, y.At(tick) + 4, y.Label(tick));
  }
  for (const double tick : x.Ticks()) {
    fmt::format_to(
        to, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#555\">{:.0f}</text>\n",
        x.At(tick), y.from + 18, tick);
  }
}

// Lines between neighbours; a point without any is a dot.
void DrawLine(const Series& series, const Axis& x, const Axis& y, const char* color,
              std::string* out) {
  auto to = std::back_inserter(*out);
  const auto drawable = [&](size_t i) {
    return i < series.x.size() && std::isfinite(series.y[i]) && std::abs(series.y[i]) <= 1e300;
  };
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (!drawable(i)) continue;
    if (!drawable(i + 1)) {
      fmt::format_to(to, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"{}\"/>\n",
                     x.At(series.x[i]), y.At(series.y[i]), color);
      continue;
    }
    fmt::format_to(to, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"",
                   color);
    for (; drawable(i); ++i) {
      fmt::format_to(to, "{:.1f},{:.1f} ", x.At(series.x[i]), y.At(series.y[i]));
    }
    out->back() = '"';
    *out += "/>\n";
  }
}

void DrawIntervals(const Series& series, const Axis& x, const Axis& y, const char* color,
                   std::string* out) {
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i])) continue;
    const double at = x.At(series.x[i]);
    if (std::isfinite(series.low[i]) && std::isfinite(series.high[i])) {
      fmt::format_to(std::back_inserter(*out),
                     "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
                     "stroke=\"{3}\"/>",
                     at, y.At(series.low[i]), y.At(series.high[i]), color);
    }
    fmt::format_to(std::back_inserter(*out),
                   "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", at,
                   y.At(series.y[i]), color);
  }
}

// Of all panels, so that a step is at one place in each.
Bounds StepsOf(const std::vector<Panel>& panels) {
  Bounds steps;
  for (const Panel& panel : panels) {
    for (const Series& series : panel.series) {
      for (const double step : series.x) steps.Add(step);
    }
  }
  return steps;
}

// Its top is at `top`.
void DrawPanel(const Panel& panel, const Bounds& steps, double top, std::string* out) {
  Bounds values;
  for (const Series& series : panel.series) {
    for (const auto* list : {&series.y, &series.low, &series.high}) {
      for (const double value : *list) values.Add(value);
    }
  }
  const double bottom = top + kAbove + kPlotHeight;
  const Axis x = MakeAxis(steps, 8, kLeft, kWidth - kRight, /*whole_ticks=*/false);
  const Axis y = MakeAxis(values, 5, bottom, top + kAbove, /*whole_ticks=*/true);
  fmt::format_to(std::back_inserter(*out),
                 "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222\" font-weight=\"bold\">{}</text>\n",
                 kLeft, top + 16, EscapeMarkup(panel.title));
  DrawAxes(x, y, out);
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const Series series = Thin(panel.series[i]);
    DrawLine(series, x, y, ColorOf(i), out);
    if (HasIntervals(series)) DrawIntervals(series, x, y, ColorOf(i), out);
  }
}

void DrawLegend(const std::vector<Series>& series, double top, std::string* out) {
  for (size_t i = 0; i < series.size(); ++i) {
    const double y = top + kLegendLine * (static_cast<double>(i) + 0.5);
    fmt::format_to(std::back_inserter(*out),
                   "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
                   "stroke-width=\"3\"/><text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#222\">{}</text>\n",
                   kLeft, kLeft + 20, y, y, ColorOf(i), kLeft + 28, y + 4,
                   EscapeMarkup(Shorten(series[i].name)));
  }
}

}  // namespace

std::string DrawSvg(const std::vector<Panel>& panels) {
  constexpr double kPanel = kAbove + kPlotHeight + kBelow;
  const size_t named = panels.empty() || panels[0].series.size() < 2 ? 0 : panels[0].series.size();
  const double plots = kPanel * static_cast<double>(panels.size());
  const double height = plots + (named > 0 ? kLegendLine * static_cast<double>(named) + 8 : 0);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
      kWidth, height);
  const Bounds steps = StepsOf(panels);
  for (size_t i = 0; i < panels.size(); ++i) {
    DrawPanel(panels[i], steps, kPanel * static_cast<double>(i), &out);
  }
  if (named > 0) DrawLegend(panels[0].series, plots, &out);
  return out + "</svg>\n";
}

}  // namespace orrery::run

#include "orchestrator/run/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "orchestrator/base/utf8.h"

namespace orrery::run {
namespace {

constexpr int kMinColumns = 20;
// Text colours that read on dark and on light backgrounds.
constexpr std::array<int, 6> kColors = {36, 33, 35, 32, 34, 31};
// Bit of a braille character by row and column of the dot (Unicode 15, block 2800).
constexpr int kBrailleBit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // In [0, 1]. Halves first, so that the widest range of doubles does not overflow.
  double Fraction(double value) const {
    const double half_width = high / 2 - low / 2;
    return half_width == 0 ? 0.5 : std::clamp((value / 2 - low / 2) / half_width, 0.0, 1.0);
  }
  double At(double fraction) const { return low + fraction * (high / 2 - low / 2) * 2; }
};

struct Cell {
  int dots = 0;
  int owner = -1;  // series that drew last
};

class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns), rows_(rows), across_(unicode ? 2 : 1), down_(unicode ? 4 : 1) {
    cells_.resize(static_cast<size_t>(columns * rows));
  }

  // Draws a line between two points given as fractions of the area, y upwards.
  void Line(double x0, double y0, double x1, double y1, int owner) {
    const double width = columns_ * across_ - 1;
    const double height = rows_ * down_ - 1;
    // Rounded up, so that neighbouring dots touch.
    const double steps =
        std::ceil(std::max({1.0, std::abs(x1 - x0) * width, std::abs(y1 - y0) * height}));
    for (int i = 0; i <= static_cast<int>(steps); ++i) {
      const double t = i / steps;
      Dot(static_cast<int>(std::lround((x0 + t * (x1 - x0)) * width)),
          static_cast<int>(std::lround((1 - y0 - t * (y1 - y0)) * height)), owner);
    }
  }

  const Cell& at(int column, int row) const {
    return cells_[static_cast<size_t>(row * columns_ + column)];
  }
  int columns() const { return columns_; }
  int rows() const { return rows_; }

 private:
  void Dot(int x, int y, int owner) {
    Cell& cell = cells_[static_cast<size_t>(y / down_ * columns_ + x / across_)];
    cell.dots |= kBrailleBit[y % down_][x % across_];
    cell.owner = owner;
  }

  const int columns_;
  const int rows_;
  const int across_;  // dots of a character
  const int down_;
  std::vector<Cell> cells_;
};

void DrawSeries(const Series& series, const Range& x, const Range& y, int owner, Canvas* canvas) {
  double last_x = -1;
  double last_y = -1;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i])) continue;
    const double now_x = x.Fraction(series.x[i]);
    const double now_y = y.Fraction(series.y[i]);
    canvas->Line(last_x < 0 ? now_x : last_x, last_x < 0 ? now_y : last_y, now_x, now_y, owner);
    last_x = now_x;
    last_y = now_y;
  }
}

std::string Colored(std::string_view text, int owner, const ChartStyle& style) {
  if (!style.color) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kColors[static_cast<size_t>(owner) % kColors.size()],
                     text);
}

// With one colour for all, letters tell several series apart.
std::string Glyph(const Cell& cell, bool letters, const ChartStyle& style) {
  if (cell.owner < 0) return " ";
  if (letters) return std::string(1, static_cast<char>('a' + cell.owner % 26));
  if (!style.unicode) return Colored("*", cell.owner, style);
  const int code = 0x2800 + cell.dots;
  const std::string braille = {static_cast<char>(0xe0 | code >> 12),
                               static_cast<char>(0x80 | (code >> 6 & 63)),
                               static_cast<char>(0x80 | (code & 63))};
  return Colored(braille, cell.owner, style);
}

std::string Rows(const Canvas& canvas, const Range& y, size_t label_width, bool letters,
                 const ChartStyle& style) {
  std::string out;
  const char* const tick = style.unicode ? "\u2524" : "+";
  const char* const bar = style.unicode ? "\u2502" : "|";
  for (int row = 0; row < canvas.rows(); ++row) {
    // One value alone is in the middle.
    const bool end = y.low < y.high && (row == 0 || row == canvas.rows() - 1);
    const bool labeled = end || row == canvas.rows() / 2;
    const double fraction = 1 - static_cast<double>(row) / (canvas.rows() - 1);
    out += fmt::format("{:>{}} {}", labeled ? FormatValue(y.At(fraction)) : "", label_width,
                       labeled ? tick : bar);
    for (int column = 0; column < canvas.columns(); ++column) {
      out += Glyph(canvas.at(column, row), letters, style);
    }
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

std::string XAxis(const Range& x, size_t label_width, int columns, const ChartStyle& style) {
  std::string out(label_width + 1, ' ');
  out += style.unicode ? "\u2514" : "+";
  for (int i = 0; i < columns; ++i) out += style.unicode ? "\u2500" : "-";
  const std::string low = fmt::format("{:.0f}", x.low);
  const std::string high = fmt::format("{:.0f}", x.high);
  out += '\n' + std::string(label_width + 2, ' ') + low;
  const int gap = columns - static_cast<int>(low.size() + high.size());
  return out + std::string(static_cast<size_t>(std::max(1, gap)), ' ') + high + '\n';
}

// Without codes that a terminal would obey.
std::string Shown(std::string_view name) { return ShortenUtf8(name, 300); }

std::string Legend(const std::vector<Series>& series, bool letters, const ChartStyle& style) {
  std::string out;
  for (size_t i = 0; i < series.size(); ++i) {
    const std::string mark = letters         ? std::string(1, static_cast<char>('a' + i % 26))
                             : style.unicode ? "\u2501\u2501"
                                             : "**";
    out += "  " + Colored(mark, static_cast<int>(i), style) + " " + Shown(series[i].name) + "\n";
  }
  return out;
}

}  // namespace

ChartStyle StyleFor(const ConsoleTraits& traits) {
  ChartStyle style;
  style.columns = std::clamp(traits.columns, kMinColumns, 120);
  style.unicode = traits.unicode;
  style.color = traits.color;
  return style;
}

std::string DrawChart(std::string_view title, const std::vector<Series>& series,
                      const ChartStyle& style) {
  Range x;
  Range y;
  for (const Series& one : series) {
    for (size_t i = 0; i < one.x.size(); ++i) {
      if (!std::isfinite(one.y[i])) continue;
      x.Include(one.x[i]);
      y.Include(one.y[i]);
    }
  }
  std::string out = Shown(title);
  if (y.empty()) return out + ": no values\n";
  const int rows = std::max(3, style.rows);
  const Range& range = y;
  const size_t label_width =
      std::max({FormatValue(range.low).size(), FormatValue(range.high).size(),
                FormatValue(range.At(0.5)).size()});
  const int columns = std::max(kMinColumns, style.columns - static_cast<int>(label_width) - 3);
  Canvas canvas(columns, rows, style.unicode);
  for (size_t i = 0; i < series.size(); ++i) {
    DrawSeries(series[i], x, range, static_cast<int>(i), &canvas);
  }
  const bool letters = series.size() > 1 && !style.color;
  out += '\n' + Rows(canvas, range, label_width, letters, style) +
         XAxis(x, label_width, columns, style);
  return series.size() > 1 ? out + Legend(series, letters, style) : out;
}

}  // namespace orrery::run

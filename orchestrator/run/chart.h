// A line chart in characters, for the terminal: braille dots (2 x 4 a character), or ASCII where
// the locale has no UTF-8. Several series overlay each other: told apart by colour, and where there
// is none by a letter each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/run/console.h"

namespace orrery::run {

struct Series {
  std::string name;
  std::vector<double> x;  // ascending
  std::vector<double> y;  // as long as x; what is not finite is a gap
  // An interval around y for who can draw it, as long as x; empty: none.
  std::vector<double> low = {}, high = {};
};

struct ChartStyle {
  int columns = 80;  // of the whole picture, axis labels included
  int rows = 12;     // of the plotting area
  bool unicode = true;
  bool color = false;
};

// A style for what the stream can show.
ChartStyle StyleFor(const ConsoleTraits& traits);

// Title, plotting area with axis labels, and a legend where there is more than one series. Lines
// end in '\n'. A chart without one finite point says so.
std::string DrawChart(std::string_view title, const std::vector<Series>& series,
                      const ChartStyle& style);

}  // namespace orrery::run

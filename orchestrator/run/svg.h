// Curves as an SVG picture, for a page or a paper: one panel a chart, one below the other, and a
// legend below them all where there is more than one series, so that it covers nothing.
#pragma once

#include <string>
#include <vector>

#include "orchestrator/run/chart.h"

namespace orrery::run {

struct Panel {
  std::string title;
  std::vector<Series> series;  // of every panel the same ones, in the same order
};

// Series with intervals are drawn as dots with bars. Long ones are means over stretches of steps.
std::string DrawSvg(const std::vector<Panel>& panels);

}  // namespace orrery::run

// `orrery plot DIR...`: the curves of one or several runs, overlaid, in the terminal or as a
// picture.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/run/chart.h"

namespace orrery::run {

struct PlotOptions {
  // Names of metrics; empty: reward, evaluations, response length, entropy, KL, loss and gradient
  // norm, as far as the runs have them.
  std::vector<std::string> metrics;
  ChartStyle style;
};

// A metric that no run has is an error that names those that are close.
absl::Status PlotRuns(const std::vector<std::string>& run_directories, const PlotOptions& options,
                      std::FILE* out);

// The same as an SVG picture.
absl::Status WriteSvg(const std::vector<std::string>& run_directories, const PlotOptions& options,
                      const std::string& path);

}  // namespace orrery::run

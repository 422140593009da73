#include "orchestrator/run/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/metric_names.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/svg.h"

namespace orrery::run {
namespace {

constexpr std::string_view kDefaultMetrics[] = {metric::kRawReward,      metric::kResponseLenMean,
                                                metric::kTruncatedRatio, metric::kEntropy,
                                                metric::kTrainRolloutKl, metric::kLoss,
                                                metric::kGradNorm};

struct Run {
  std::string directory;
  std::vector<StepMetrics> steps;
};

std::set<std::string> NamesIn(const std::vector<Run>& runs) {
  std::set<std::string> names;
  for (const Run& run : runs) {
    for (const StepMetrics& step : run.steps) {
      for (const auto& [name, value] : step.values()) names.insert(name);
    }
  }
  return names;
}

bool IsAccuracy(const std::string& name) {
  return name.starts_with(metric::kEvalPrefix) && name.ends_with(metric::kAccuracySuffix);
}

std::vector<std::string> Defaults(const std::set<std::string>& names) {
  std::vector<std::string> chosen;
  for (const std::string_view name : kDefaultMetrics) {
    if (names.contains(std::string(name))) chosen.emplace_back(name);
  }
  for (const std::string& name : names) {
    if (IsAccuracy(name)) chosen.push_back(name);
  }
  return chosen;
}

// Names that hold the wanted one or its last part.
std::string Close(const std::string& wanted, const std::set<std::string>& names) {
  const std::string last = wanted.substr(wanted.rfind('/') + 1);
  std::string close;
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
    if (name.find(last) == std::string::npos) continue;
    close += (close.empty() ? "" : ", ") + name;
  }
  return close.empty() ? "it has " + all : "did you mean " + close + "?";
}

// An accuracy comes with its interval where every step has one.
void AddIntervals(const Run& run, const std::string& name, Series* series) {
  for (const StepMetrics& step : run.steps) {
    if (!step.Find(name)) continue;
    const std::optional<double> low = step.Find(name + "_low"), high = step.Find(name + "_high");
    if (!low || !high) continue;
    series->low.push_back(*low);
    series->high.push_back(*high);
  }
  if (series->low.size() == series->x.size()) return;
  series->low.clear();
  series->high.clear();
}

Series SeriesOf(const Run& run, const std::string& name) {
  Series series;
  series.name = run.directory;
  for (const StepMetrics& step : run.steps) {
    const std::optional<double> value = step.Find(name);
    if (!value) continue;
    series.x.push_back(static_cast<double>(step.step()));
    series.y.push_back(*value);
  }
  if (IsAccuracy(name)) AddIntervals(run, name, &series);
  return series;
}

absl::StatusOr<std::vector<Panel>> Panels(const std::vector<std::string>& run_directories,
                                          const std::vector<std::string>& metrics) {
  std::vector<Run> runs;
  for (const std::string& directory : run_directories) {
    ASSIGN_OR_RETURN(std::vector<StepMetrics> steps, ReadMetrics(directory));
    if (steps.empty()) return InvalidInput("{} has no step in its metrics.jsonl yet", directory);
    runs.push_back({directory, std::move(steps)});
  }
  const std::set<std::string> names = NamesIn(runs);
  const std::vector<std::string> wanted = metrics.empty() ? Defaults(names) : metrics;
  std::vector<Panel> panels;
  for (const std::string& name : wanted) {
    if (!names.contains(name)) {
      return InvalidInput("no run has the metric '{}': {}", name, Close(name, names));
    }
    panels.push_back({name, {}});
    for (const Run& run : runs) panels.back().series.push_back(SeriesOf(run, name));
  }
  return panels;
}

}  // namespace

absl::Status PlotRuns(const std::vector<std::string>& run_directories, const PlotOptions& options,
                      std::FILE* out) {
  ASSIGN_OR_RETURN(const std::vector<Panel> panels, Panels(run_directories, options.metrics));
  for (const Panel& panel : panels) {
    fmt::print(out, "{}\n", DrawChart(panel.title, panel.series, options.style));
  }
  return absl::OkStatus();
}

absl::Status WriteSvg(const std::vector<std::string>& run_directories, const PlotOptions& options,
                      const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Panel> panels, Panels(run_directories, options.metrics));
  return WriteFileAtomically(path, DrawSvg(panels));
}

}  // namespace orrery::run

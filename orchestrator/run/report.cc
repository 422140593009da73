#include "orchestrator/run/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/console.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/markup.h"
#include "orchestrator/run/metric_names.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/report_assets.h"
#include "orchestrator/run/report_data.h"
#include "orchestrator/run/run_directory.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;

struct LoadedRun {
  std::string directory;
  std::string name;
  std::vector<StepMetrics> steps;
};

void AppendText(std::string* out, std::string_view text) { AppendJsonString(out, text, true); }

// The last part of the path, also of "runs/a/" and ".".
std::string NameOf(const std::string& directory) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(directory, error);
  if (error) path = directory;
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().empty() ? directory : path.filename().string();
}

// Runs of the same name in different folders get their folder too.
void MakeNamesDistinct(std::vector<LoadedRun>* runs) {
  for (LoadedRun& run : *runs) {
    const auto same = [&](const LoadedRun& other) { return NameOf(other.directory) == run.name; };
    if (std::count_if(runs->begin(), runs->end(), same) > 1) run.name = run.directory;
  }
}

struct Summary {
  double first_reward = NAN;
  double last_reward = NAN;
  double best_reward = NAN;
  double response_len = NAN;
  double step_seconds = NAN;
  double seconds = 0;
};

Summary Summarize(const std::vector<StepMetrics>& steps) {
  Summary summary;
  int64_t timed = 0;
  for (const StepMetrics& step : steps) {
    const double reward = step.Get(metric::kRawReward, NAN);
    if (std::isfinite(reward)) {
      if (std::isnan(summary.first_reward)) summary.first_reward = reward;
      summary.last_reward = reward;
      summary.best_reward = std::fmax(summary.best_reward, reward);
    }
    summary.response_len = step.Get(metric::kResponseLenMean, summary.response_len);
    const double seconds = step.Get(metric::kStepSeconds, NAN);
    if (!std::isfinite(seconds)) continue;
    summary.seconds += seconds;
    ++timed;
  }
  if (timed > 0) summary.step_seconds = summary.seconds / static_cast<double>(timed);
  return summary;
}

std::string SummaryJson(const std::vector<StepMetrics>& steps) {
  const Summary summary = Summarize(steps);
  // Not the number of lines: an evaluation before the first step has one too.
  const int64_t done = steps.empty() ? 0 : steps.back().step();
  std::string out = fmt::format("\"summary\":{{\"steps\":{}", done);
  for (const auto& [name, value] : {std::pair{"first_reward", summary.first_reward},
                                    {"last_reward", summary.last_reward},
                                    {"best_reward", summary.best_reward},
                                    {"response_len", summary.response_len},
                                    {"step_s", summary.step_seconds}}) {
    out += fmt::format(",\"{}\":", name);
    AppendPictureNumber(&out, value);
  }
  out += ",\"time\":";
  AppendText(&out, std::isnan(summary.step_seconds) ? "" : FormatDuration(summary.seconds));
  return out + '}';
}

std::string EventsJson(const std::string& directory, int64_t max_events) {
  const absl::StatusOr<std::vector<Event>> events = ReadEvents(RunPaths(directory).events());
  std::string out = "\"events\":[";
  if (!events.ok()) return out + ']';  // a report of the curves alone is still one
  const size_t begin = events->size() - std::min(events->size(), static_cast<size_t>(max_events));
  for (size_t i = begin; i < events->size(); ++i) {
    const Event& event = (*events)[i];
    out += i == begin ? "{\"time\":" : ",{\"time\":";
    AppendText(&out, event.time);
    out += ",\"step\":" + (event.step ? std::to_string(*event.step) : "null") + ",\"kind\":";
    AppendText(&out, event.kind);
    out += ",\"text\":";
    AppendText(&out, event.text);
    out += '}';
  }
  return out + ']';
}

std::string RunJson(const LoadedRun& run, const ReportOptions& options) {
  std::string out = "{\"name\":";
  AppendText(&out, run.name);
  out += ",\"directory\":";
  AppendText(&out, run.directory);
  out += ",\"experiment\":";
  AppendText(&out, ReadFile(RunPaths(run.directory).experiment()).value_or(""));
  out += ',' + EventsJson(run.directory, options.max_events);
  out += ',' + SummaryJson(run.steps);
  return out + ',' + CurvesJson(run.steps, options.max_points) + '}';
}

// The first recorded step and the last ones: what it said before and what it says now.
std::vector<int64_t> ChosenSampleSteps(const std::string& directory, int64_t count) {
  std::vector<int64_t> steps = SampleSteps(directory).value_or(std::vector<int64_t>());
  const auto keep = static_cast<size_t>(std::max<int64_t>(0, count));
  if (steps.size() <= keep) return steps;
  if (keep == 0) return {};
  steps.erase(steps.begin() + 1, steps.end() - static_cast<std::ptrdiff_t>(keep - 1));
  return steps;
}

double SubmittedAt(const LoadedRun& run, int64_t step) {
  for (const StepMetrics& metrics : run.steps) {
    if (metrics.step() != step) continue;
    const double submitted = metrics.Get(metric::kSubmitted, 0);
    return std::isfinite(submitted) ? submitted : 0;
  }
  return 0;
}

// Rollouts, then the newest file of each evaluation; where there are too many of these, of the
// newest ones.
std::vector<ShownSamples> ChosenSamples(const LoadedRun& run, int64_t index,
                                        const ReportOptions& options) {
  const RunPaths paths(run.directory);
  std::vector<ShownSamples> chosen;
  for (const int64_t step : ChosenSampleSteps(run.directory, options.sample_steps)) {
    chosen.push_back({index, step, paths.samples_of(step), "", SubmittedAt(run, step)});
  }
  std::vector<ShownSamples> evals;
  const auto newest = NewestEvalSamples(run.directory);
  if (newest.ok()) {
    for (const auto& [name, file] : *newest)
      evals.push_back({index, file.step, file.path, name, 0});
  }
  std::stable_sort(evals.begin(), evals.end(),
                   [](const auto& a, const auto& b) { return a.step > b.step; });
  evals.resize(std::min(evals.size(), static_cast<size_t>(std::max<int64_t>(0, options.evals))));
  chosen.insert(chosen.end(), evals.begin(), evals.end());
  return chosen;
}

std::string SamplesJson(const std::vector<LoadedRun>& runs, const ReportOptions& options) {
  std::string out = "[";
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto chosen = ChosenSamples(runs[r], static_cast<int64_t>(r), options);
    for (const ShownSamples& shown : chosen) {
      // Shares, so that the first step cannot use up what the last one needs.
      const auto shares = static_cast<int64_t>(runs.size() * chosen.size());
      if (out.back() != '[') out += ',';
      out += SamplesFileJson(shown, options, options.max_sample_bytes / shares);
    }
  }
  return out + ']';
}

// Fills the places of the page in one pass: what is filled in is not looked at again.
std::string FillPage(std::string_view title, std::string_view data) {
  std::string out;
  std::string_view rest = assets::kPageHtml;
  const std::pair<std::string_view, std::string> places[] = {
      {"@TITLE@", EscapeMarkup(title)},
      {"@CSS@", fmt::format("{}\n{}", assets::kChartsCss, assets::kPageCss)},
      {"@DATA@", std::string(data)},
      {"@CHARTS@", std::string(assets::kChartsJs)},
      {"@SCRIPT@", fmt::format("{}\n{}", assets::kPageJs, assets::kSamplesJs)},
  };
  for (const auto& [place, content] : places) {
    const size_t at = rest.find(place);
    out += rest.substr(0, at);
    out += content;
    rest.remove_prefix(at + place.size());
  }
  out += rest;
  return out;
}

}  // namespace

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_directories,
                                       const ReportOptions& options) {
  if (run_directories.empty()) return InvalidInput("a report needs at least one run directory");
  std::vector<LoadedRun> runs;
  for (const std::string& directory : run_directories) {
    ASSIGN_OR_RETURN(std::vector<StepMetrics> steps, ReadMetrics(directory));
    runs.push_back({directory, NameOf(directory), std::move(steps)});
  }
  MakeNamesDistinct(&runs);
  const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
  std::string data = "{\"title\":";
  AppendText(&data, title);
  data += ",\"time\":";
  AppendText(&data, UtcNow().substr(0, 16) + "Z");
  data += ",\"runs\":[";
  for (const LoadedRun& run : runs) {
    if (data.back() != '[') data += ',';
    data += RunJson(run, options);
  }
  data += "],\"samples\":" + SamplesJson(runs, options) + '}';
  return FillPage(title, data);
}

absl::Status WriteReport(const std::vector<std::string>& run_directories, const std::string& path,
                         const ReportOptions& options) {
  ASSIGN_OR_RETURN(const std::string page, MakeReport(run_directories, options));
  return WriteFileAtomically(path, page);
}

}  // namespace orrery::run

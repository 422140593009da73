#include "orchestrator/run/metrics.h"

#include <cmath>
#include <limits>

#include "orchestrator/base/status.h"
#include "orchestrator/run/json_text.h"

namespace orrery::run {

void StepMetrics::Set(std::string_view name, double value) {
  for (auto& [known, old] : values_) {
    if (known == name) {
      old = value;
      return;
    }
  }
  values_.emplace_back(name, value);
}

std::optional<double> StepMetrics::Find(std::string_view name) const {
  for (const auto& [known, value] : values_) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::string ToJsonLine(const StepMetrics& metrics) {
  std::string line = "{\"step\":";
  AppendJsonNumber(&line, metrics.step());
  for (const auto& [name, value] : metrics.values()) {
    line += ',';
    AppendJsonString(&line, name);
    line += ':';
    if (std::isfinite(value)) {
      AppendJsonNumber(&line, value);
    } else {
      line += "null";
    }
  }
  return line + '}';
}

absl::StatusOr<StepMetrics> ParseMetricsLine(std::string_view line) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJsonLine(line));
  ASSIGN_OR_RETURN(const rapidjson::Value* step_value, JsonMember(document, "step"));
  absl::StatusOr<int64_t> step = JsonInt(*step_value);
  if (!step.ok()) return Annotate(step.status(), "step");
  StepMetrics metrics(*step);
  for (const auto& member : document.GetObject()) {
    const std::string name(member.name.GetString(), member.name.GetStringLength());
    if (name == "step") continue;
    if (member.value.IsNull()) {
      metrics.Set(name, std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    absl::StatusOr<double> value = JsonDouble(member.value);
    if (!value.ok()) return Annotate(value.status(), name);
    metrics.Set(name, *value);
  }
  return metrics;
}

absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& run_directory) {
  const std::string path = run_directory + "/metrics.jsonl";
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path));
  std::vector<StepMetrics> steps;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StatusOr<StepMetrics> metrics = ParseMetricsLine(lines[i]);
    if (!metrics.ok()) return Annotate(metrics.status(), fmt::format("{} line {}", path, i + 1));
    if (!steps.empty() && metrics->step() <= steps.back().step()) {
      return InvalidInput("{} line {}: step {} after step {}; steps must grow", path, i + 1,
                          metrics->step(), steps.back().step());
    }
    steps.push_back(*std::move(metrics));
  }
  return steps;
}

absl::Status KeepMetricsUpTo(const std::string& path, int64_t step) {
  return KeepLines(path, [step](std::string_view line) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const StepMetrics metrics, ParseMetricsLine(line));
    return metrics.step() <= step;
  });
}

absl::StatusOr<std::unique_ptr<JsonlSink>> JsonlSink::Open(
    const std::string& path, Journal* journal, std::chrono::milliseconds sync_interval) {
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, LineFile::Open(path));
  return std::unique_ptr<JsonlSink>(new JsonlSink(std::move(file), journal, sync_interval));
}

absl::Status JsonlSink::Write(const StepMetrics& metrics) {
  RETURN_IF_ERROR(file_->Append(ToJsonLine(metrics)));
  RETURN_IF_ERROR(ReportNotFinite(metrics));
  if (std::chrono::steady_clock::now() - last_sync_ < sync_interval_) return absl::OkStatus();
  return Flush();
}

absl::Status JsonlSink::Flush() {
  last_sync_ = std::chrono::steady_clock::now();
  return file_->Sync();
}

absl::Status JsonlSink::ReportNotFinite(const StepMetrics& metrics) {
  if (journal_ == nullptr) return absl::OkStatus();
  for (const auto& [name, value] : metrics.values()) {
    if (std::isfinite(value)) continue;
    RETURN_IF_ERROR(journal_->WriteForStep(
        metrics.step(), "metric_not_finite", fmt::format("{} is {}", name, value),
        {{"metric", name}, {"value", fmt::format("{}", value)}}));
  }
  return absl::OkStatus();
}

}  // namespace orrery::run

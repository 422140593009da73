// One step's metrics, the file that is the authority on them (metrics.jsonl, one object a line) and
// the interface of everything else that shows them.
//
// A line is {"step":1,"rollout/raw_reward":0.25,...}: names in the order they were set, doubles in
// the shortest form that parses back to the same bits. NaN and infinity become null, and an event
// says which they were.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/line_file.h"

namespace orrery::run {

class StepMetrics {
 public:
  explicit StepMetrics(int64_t step = 0) : step_(step) {}

  int64_t step() const { return step_; }
  const std::vector<std::pair<std::string, double>>& values() const { return values_; }
  // Overwrites in place where the name is there.
  void Set(std::string_view name, double value);
  std::optional<double> Find(std::string_view name) const;
  double Get(std::string_view name, double otherwise) const {
    return Find(name).value_or(otherwise);
  }

 private:
  int64_t step_;
  std::vector<std::pair<std::string, double>> values_;
};

std::string ToJsonLine(const StepMetrics& metrics);
// null reads as NaN. The error says what is wrong with the line.
absl::StatusOr<StepMetrics> ParseMetricsLine(std::string_view line);

// metrics.jsonl of a run directory, in order. Errors name file and line; steps must grow. A torn
// last line is left out.
absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& run_directory);

// Removes the lines of steps after `step`.
absl::Status KeepMetricsUpTo(const std::string& path, int64_t step);

// Where a step's metrics go. Called from one thread.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual absl::Status Write(const StepMetrics& metrics) = 0;
  // What was written is on the disk (or screen) when it returns.
  virtual absl::Status Flush() = 0;
};

// Appends to metrics.jsonl. Every line survives the death of the process at once; it is synced to
// the disk when `sync_interval` has passed since the last sync, and on Flush(), which a checkpoint
// calls first.
class JsonlSink : public MetricSink {
 public:
  // `journal` is borrowed and may be null: then nobody hears of values that are not finite.
  static absl::StatusOr<std::unique_ptr<JsonlSink>> Open(
      const std::string& path, Journal* journal,
      std::chrono::milliseconds sync_interval = std::chrono::seconds(1));

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Flush() override;

 private:
  JsonlSink(std::unique_ptr<LineFile> file, Journal* journal,
            std::chrono::milliseconds sync_interval)
      : file_(std::move(file)), journal_(journal), sync_interval_(sync_interval) {}
  absl::Status ReportNotFinite(const StepMetrics& metrics);

  const std::unique_ptr<LineFile> file_;
  Journal* const journal_;
  const std::chrono::milliseconds sync_interval_;
  std::chrono::steady_clock::time_point last_sync_;
};

}  // namespace orrery::run

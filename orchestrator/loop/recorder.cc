#include "orchestrator/loop/recorder.h"

#include <utility>

#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "orchestrator/run/metric_names.h"

namespace orrery {

absl::Status Recorder::PostWriting(int64_t step, std::function<absl::Status()> write) {
  if (!parts_.samples) return absl::OkStatus();
  return background_.Post([this, step, write = std::move(write)] {
    const run::TraceSpan span(parts_.trace, "write", "step", parts_.trace_track, step);
    Stopwatch watch;
    absl::Status status = write();
    write_s_ += watch.Lap();
    return status;
  });
}

absl::Status Recorder::WriteSamples(int64_t step, Groups groups) {
  return PostWriting(step, [this, step, groups = std::move(groups)] {
    return run::WriteSamples(parts_.paths.root, step, *groups, parts_.pieces);
  });
}

absl::Status Recorder::AddEval(int64_t step, const std::string& eval,
                               std::vector<EpisodeGroup> groups) {
  auto held = std::make_shared<const std::vector<EpisodeGroup>>(std::move(groups));
  return PostWriting(step, [this, step, eval, held = std::move(held)] {
    if (!eval_) eval_.emplace(parts_.paths.eval_samples_of(step, eval), step, parts_.pieces);
    eval_->Add(*held);
    return absl::OkStatus();
  });
}

absl::Status Recorder::EndEval(int64_t step) {
  return PostWriting(step, [this] {
    absl::Status status = eval_ ? eval_->Finish() : absl::OkStatus();
    eval_.reset();
    return status;
  });
}

absl::Status Recorder::WriteMetrics(run::StepMetrics metrics, Groups groups) {
  return background_.Post(
      [this, metrics = std::move(metrics), groups = std::move(groups)]() mutable {
        if (parts_.samples) metrics.Set(run::metric::kWriteSeconds, std::exchange(write_s_, 0.0));
        for (run::MetricSink* sink : parts_.sinks) RETURN_IF_ERROR(sink->Write(metrics));
        return absl::OkStatus();
      });
}

}  // namespace orrery

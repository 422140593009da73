// Writes what a step leaves behind the loop's back: samples while the model learns from them and
// into the next step's rollout, then the step's metrics, which therefore stand for samples that are
// there. At most one step is being written: the loop waits for it before the next one trains, and
// before a checkpoint.
//
//   WriteSamples(7) ... AddEval(7) ... EndEval ... WriteMetrics(7)   [rollout of 8]   Wait
//
// Calls come from the loop's thread; sinks are written to from another one, never while Wait() has
// returned and nothing was given since. The first error of writing comes back from every later
// call, and nothing is written after it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/background.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/samples.h"
#include "orchestrator/run/trace.h"

namespace orrery {

struct RecorderParts {
  run::RunPaths paths;
  bool samples = true;  // write them
  run::PieceDecoder pieces;
  std::vector<run::MetricSink*> sinks;
  run::TraceWriter* trace = nullptr;  // may be null
  int32_t trace_track = 0;
};

class Recorder {
 public:
  using Groups = std::shared_ptr<const std::vector<EpisodeGroup>>;

  explicit Recorder(RecorderParts parts) : parts_(std::move(parts)) {}

  // groups: nobody changes them from here on.
  absl::Status WriteSamples(int64_t step, Groups groups);
  // The next groups of an evaluation; EndEval ends its file.
  absl::Status AddEval(int64_t step, const std::string& eval, std::vector<EpisodeGroup> groups);
  absl::Status EndEval(int64_t step);
  // Last of a step. Adds perf/write_s, what writing the samples took; the groups end there, so
  // that the loop need not wait for their memory to be given back.
  absl::Status WriteMetrics(run::StepMetrics metrics, Groups groups = nullptr);
  // Until everything given so far is written.
  absl::Status Wait() { return background_.Wait(); }

 private:
  // A job that counts as writing samples.
  absl::Status PostWriting(int64_t step, std::function<absl::Status()> write);

  const RecorderParts parts_;
  // Of jobs alone.
  double write_s_ = 0;
  std::optional<run::SamplesWriter> eval_;
  Background background_;  // last: its end comes first
};

}  // namespace orrery

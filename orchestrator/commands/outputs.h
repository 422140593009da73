// Where a training command reports to: journal, metrics, TensorBoard, terminal and at the end the
// report. Opened on a run directory that was cut to its checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "configs/experiment.h"
#include "orchestrator/base/fatal.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/run/console.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/trace.h"

namespace orrery::commands {

struct Outputs {
  std::unique_ptr<run::Journal> journal;
  std::unique_ptr<run::MetricSink> metrics, tensorboard;
  std::unique_ptr<run::Console> console;
  std::unique_ptr<run::TraceWriter> trace;  // null unless output.trace
  // Notes in the journal what ends the process at once: a failing GPU.
  std::unique_ptr<FatalHook> last_words;
  bool report = true;

  static absl::StatusOr<std::unique_ptr<Outputs>> Open(const configs::Experiment& experiment,
                                                       const run::RunDirectory& directory,
                                                       int64_t first_step, int64_t last_step);
  std::vector<run::MetricSink*> sinks() const;
  // Flushes, writes report.html and says where things are, and how an interrupted run goes on.
  absl::Status Finish(const run::RunDirectory& directory, Ending ending);
};

// Present in the run directory of an sft run.
std::string SftMarker(const run::RunPaths& paths);
absl::StatusOr<Ending> ResumeSft(const configs::Experiment& experiment,
                                 run::RunDirectory& directory);

}  // namespace orrery::commands

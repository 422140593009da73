#include "orchestrator/commands/outputs.h"

#include <cstdio>

#include "orchestrator/base/status.h"
#include "orchestrator/loop/loop.h"
#include "orchestrator/run/plot.h"
#include "orchestrator/run/report.h"
#include "orchestrator/run/tensorboard.h"

namespace orrery::commands {

absl::StatusOr<std::unique_ptr<Outputs>> Outputs::Open(const configs::Experiment& experiment,
                                                       const run::RunDirectory& directory,
                                                       int64_t first_step, int64_t last_step) {
  auto outputs = std::make_unique<Outputs>();
  const run::RunPaths& paths = directory.paths();
  ASSIGN_OR_RETURN(outputs->journal, run::Journal::Open(paths.events()));
  outputs->last_words =
      std::make_unique<FatalHook>([journal = outputs->journal.get()](std::string_view message) {
        (void)journal->Write("error", message);
        (void)journal->Sync();
      });
  ASSIGN_OR_RETURN(outputs->metrics, run::JsonlSink::Open(paths.metrics(), outputs->journal.get()));
  if (experiment.output.tensorboard) {
    ASSIGN_OR_RETURN(outputs->tensorboard, run::TensorBoardSink::Open(paths.tensorboard()));
  }
  if (experiment.output.trace) {
    ASSIGN_OR_RETURN(outputs->trace, run::TraceWriter::Open(paths.trace()));
    NamePhases(experiment.run.name, outputs->trace.get());
  }
  outputs->console = std::make_unique<run::Console>(stdout, first_step, last_step);
  outputs->report = experiment.output.report;
  return outputs;
}

std::vector<run::MetricSink*> Outputs::sinks() const {
  std::vector<run::MetricSink*> all = {metrics.get()};
  if (tensorboard != nullptr) all.push_back(tensorboard.get());
  all.push_back(console.get());
  return all;
}

absl::Status Outputs::Finish(const run::RunDirectory& directory, Ending ending) {
  for (run::MetricSink* sink : sinks()) RETURN_IF_ERROR(sink->Flush());
  if (trace != nullptr) RETURN_IF_ERROR(trace->Flush());
  const run::RunPaths& paths = directory.paths();
  console.reset();  // leaves the terminal on a fresh line
  if (report) {
    const absl::Status written = run::WriteReport({paths.root}, paths.report());
    if (!written.ok()) {
      return absl::Status(written.code(),
                          fmt::format("{}; the run itself is on disk, `orrery plot {} --html FILE` "
                                      "draws it later",
                                      StatusText(written), paths.root));
    }
  }
  run::PlotOptions plot;
  plot.style = run::StyleFor(run::TraitsOf(stdout));
  const absl::Status drawn = run::PlotRuns({paths.root}, plot, stdout);
  if (!drawn.ok()) std::printf("no chart: %s\n", StatusText(drawn).c_str());
  std::printf("run      %s\n", paths.root.c_str());
  if (trace != nullptr) std::printf("trace    %s\n", paths.trace().c_str());
  if (report) std::printf("report   %s\n", paths.report().c_str());
  if (ending == Ending::kInterrupted)
    std::printf("go on    orrery resume %s\n", paths.root.c_str());
  return absl::OkStatus();
}

std::string SftMarker(const run::RunPaths& paths) { return paths.root + "/sft"; }

}  // namespace orrery::commands

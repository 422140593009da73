#include <cstdio>
#include <filesystem>
#include <iostream>

#include "configs/checks.h"
#include "configs/yaml.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/algorithm.h"
#include "orchestrator/commands/checkpoint_check.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/interrupt.h"
#include "orchestrator/commands/machine.h"
#include "orchestrator/commands/outputs.h"
#include "orchestrator/commands/session.h"
#include "orchestrator/loop/loop.h"
#include "rewards/advantage.h"

namespace orrery::commands {
namespace {

absl::StatusOr<std::function<void(std::vector<EpisodeGroup>*)>> MakeAdvantages(
    const configs::Experiment& experiment) {
  ASSIGN_OR_RETURN(const rewards::AdvantageOptions options, ToAdvantages(experiment.algorithm));
  return
      [options](std::vector<EpisodeGroup>* groups) { rewards::AssignAdvantages(options, groups); };
}

absl::StatusOr<Ending> Train(const configs::Experiment& experiment, run::RunDirectory& directory,
                             Session* session, LoopState state, const std::string& checkpoint) {
  const std::atomic<bool>& interrupted = InterruptFlag();
  if (state.step == 0) {
    state.data_fingerprint = session->dataset->fingerprint();
  } else if (state.data_fingerprint != session->dataset->fingerprint()) {
    return InvalidInput("data.source {} is not the data this run began with: the rows differ",
                        experiment.data.source);
  }
  const LoopState before = state;
  SetMachine(&state);
  if (!checkpoint.empty()) {
    RETURN_IF_ERROR(UnusableCheckpoint(session->trainer->Load(checkpoint), directory.checkpoints(),
                                       before.step));
  }
  LoopParts parts;
  ASSIGN_OR_RETURN(parts.advantages, MakeAdvantages(experiment));
  ASSIGN_OR_RETURN(const std::unique_ptr<Outputs> outputs,
                   Outputs::Open(experiment, directory, state.step + 1, experiment.run.steps));
  parts.dataset = session->dataset.get();
  parts.runner = session->runner.get();
  parts.grader = session->grader.get();
  parts.trainer = session->trainer.get();
  parts.receiver = session->engine.get();
  parts.evals = &session->evals;
  parts.directory = &directory;
  parts.journal = outputs->journal.get();
  parts.sinks = outputs->sinks();
  parts.trace = outputs->trace.get();
  parts.pieces = session->Pieces();
  parts.note = [console = outputs->console.get()](std::string_view text) { console->Note(text); };
  parts.machine_metrics = MachineMetrics(session);
  parts.interrupted = &interrupted;
  RETURN_IF_ERROR(outputs->journal->Write(state.step == 0 ? "start" : "resume",
                                          fmt::format("from step {}", state.step)));
  if (session->gpu != nullptr) {
    RETURN_IF_ERROR(outputs->journal->Write("memory", plan::Summary(session->plan)));
  }
  const std::string note = before.step > 0 ? MachineNote(before, state) : "";
  if (!note.empty()) {
    outputs->console->Note(note);
    RETURN_IF_ERROR(outputs->journal->Write("machine", note));
  }
  const absl::StatusOr<LoopEnd> end = RunLoop(experiment, state, parts);
  if (!end.ok()) {
    (void)outputs->journal->Write("error", StatusText(end.status()));
    return end.status();
  }
  const bool stopped = *end == LoopEnd::kInterrupted;
  const Ending ending = stopped ? Ending::kInterrupted : Ending::kDone;
  RETURN_IF_ERROR(
      outputs->journal->Write(stopped ? "interrupted" : "done", directory.paths().root));
  RETURN_IF_ERROR(outputs->Finish(directory, ending));
  return ending;
}

}  // namespace

absl::StatusOr<Ending> Run(const RunArguments& arguments) {
  ASSIGN_OR_RETURN(const configs::Experiment written,
                   configs::LoadExperiment(arguments.file, arguments.overrides));
  RETURN_IF_ERROR(configs::CheckForTraining(written));
  ASSIGN_OR_RETURN(const ResolvedExperiment resolved, ResolveAuto(written));
  const configs::Experiment& experiment = resolved.experiment;
  RETURN_IF_ERROR(run::CheckHoldsNoRun(experiment.RunDirectory()));
  // The session first: a mistake in model or data leaves no folder behind.
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(experiment, {}));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<run::RunDirectory> directory,
      run::RunDirectory::Create(experiment.RunDirectory(), configs::PrintExperiment(experiment)));
  if (!resolved.what.empty()) {
    ASSIGN_OR_RETURN(const auto journal, run::Journal::Open(directory->paths().events()));
    RETURN_IF_ERROR(journal->Write("auto", resolved.what));
  }
  return Train(experiment, *directory, session.get(), {}, {});
}

absl::StatusOr<Ending> Resume(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<run::RunDirectory> directory,
                   run::RunDirectory::Resume(path));
  ASSIGN_OR_RETURN(const std::string text, directory->ReadExperiment());
  ASSIGN_OR_RETURN(const configs::Experiment experiment,
                   configs::ParseExperiment(text, directory->paths().experiment()));
  if (std::filesystem::exists(SftMarker(directory->paths()))) {
    return ResumeSft(experiment, *directory);
  }
  RETURN_IF_ERROR(configs::CheckForTraining(experiment));  // somebody may have edited the file
  ASSIGN_OR_RETURN(const std::optional<int64_t> latest, directory->checkpoints().Latest());
  LoopState state;
  std::string checkpoint;
  if (latest) {
    checkpoint = directory->checkpoints().Path(*latest);
    ASSIGN_OR_RETURN(state, ReadCheckpoint(directory->checkpoints(), *latest));
    if (state.step >= experiment.run.steps) {
      std::printf("%s: the run is complete (%lld steps); for more, raise run.steps in %s\n",
                  path.c_str(), static_cast<long long>(state.step),
                  directory->paths().experiment().c_str());
      return Ending::kDone;
    }
    RETURN_IF_ERROR(directory->TruncateAfter(state.step));
  } else {
    // Killed before the first checkpoint: from the beginning.
    RETURN_IF_ERROR(directory->TruncateAfter(-1));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(experiment, {}));
  return Train(experiment, *directory, session.get(), state, checkpoint);
}

}  // namespace orrery::commands

// Supervised training on prompt and solution with the trainer that RL uses: cross-entropy is the
// reinforce loss with every advantage 1.
#include <chrono>
#include <cstdio>

#include "configs/checks.h"
#include "configs/yaml.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/checkpoint_check.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/interrupt.h"
#include "orchestrator/commands/machine.h"
#include "orchestrator/commands/outputs.h"
#include "orchestrator/commands/session.h"
#include "orchestrator/loop/loop.h"
#include "orchestrator/run/metric_names.h"
#include "orchestrator/run/step_metrics.h"

namespace orrery::commands {
namespace {

absl::Status NoSolution() {
  return InvalidInput("the row has no solution to learn: set data.solution_field, or a preset");
}

// A look at the first rows: a field that is missing should not leave a run behind.
absl::Status CheckHasSolutions(const data::Dataset& dataset) {
  constexpr int64_t kLookedAt = 16;
  for (int64_t i = 0; i < std::min(kLookedAt, dataset.size()); ++i) {
    const Prompt row = dataset.Row(i);
    if (row.solution.empty() && row.solution_messages.empty()) {
      return Annotate(NoSolution(), row.id);
    }
  }
  return absl::OkStatus();
}

class Supervised {
 public:
  Supervised(const configs::Experiment& experiment, run::RunDirectory& directory, Session& session,
             Outputs& outputs, LoopState state)
      : experiment_(experiment),
        directory_(directory),
        session_(session),
        outputs_(outputs),
        state_(std::move(state)),
        order_(session.dataset->size(), HashSeed({static_cast<uint64_t>(experiment.run.seed), 1}),
               experiment.data.shuffle),
        machine_metrics_(MachineMetrics(&session)),
        stop_id_(StopId(session)) {}

  absl::StatusOr<Ending> Run(int64_t steps, const std::atomic<bool>& interrupted) {
    if (stop_id_ < 0) {
      return InvalidInput(
          "{}: neither config.json nor generation_config.json names an eos_token_id, "
          "with which a solution ends",
          session_.model_folder);
    }
    while (state_.step < steps) {
      RETURN_IF_ERROR(Step(steps));
      const bool last = state_.step == steps, stop = interrupted.load();
      const int64_t every = experiment_.checkpoint.every;
      if (last || stop || (every > 0 && state_.step % every == 0)) RETURN_IF_ERROR(Checkpoint());
      if (stop && !last) return Ending::kInterrupted;
    }
    return Ending::kDone;
  }

 private:
  static int32_t StopId(const Session& session) {
    const std::vector<int32_t>& ids = session.store->spec().eos_token_ids;
    return ids.empty() ? -1 : ids[0];
  }

  absl::Status Step(int64_t steps) {
    const auto start = std::chrono::steady_clock::now();
    TrainingBatch batch;
    for (int64_t i = 0; i < experiment_.sft.batch_size; ++i) {
      const Prompt row = session_.dataset->Row(order_.Index(state_.data_position));
      absl::StatusOr<TrainingSequence> sequence = ToSequence(row, state_.next_episode_id++);
      if (!sequence.ok()) return Annotate(sequence.status(), row.id);
      ++state_.data_position;
      batch.num_trained_tokens += sequence->episode_tokens;
      batch.sequences.push_back(*std::move(sequence));
    }
    batch.num_episodes = static_cast<int64_t>(batch.sequences.size());
    std::vector<TrainingBatch> batches;
    batches.push_back(std::move(batch));
    const run::TraceSpan span = Span(Phase::kTrain, state_.step + 1);
    RETURN_IF_ERROR(session_.engine->BeginUpdate(session_.trainer->version() + 1));
    absl::StatusOr<TrainStats> stats = session_.trainer->Train(std::move(batches));
    if (!stats.ok()) return Annotate(stats.status(), fmt::format("step {}", state_.step + 1));
    RETURN_IF_ERROR(session_.engine->Commit(session_.trainer->version()));
    ++state_.step;
    run::StepMetrics metrics(state_.step);
    run::AddTrainMetrics(*stats, &metrics);
    run::StepSeconds seconds;
    seconds.step = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds.train = seconds.step - stats->sync_s;
    seconds.sync = stats->sync_s;
    run::AddPerfMetrics(seconds, {}, *stats, &metrics);
    if (machine_metrics_) machine_metrics_(&metrics);
    RETURN_IF_ERROR(RunEvals(steps, &metrics));
    for (run::MetricSink* sink : outputs_.sinks()) RETURN_IF_ERROR(sink->Write(metrics));
    return absl::OkStatus();
  }

  run::TraceSpan Span(Phase phase, int64_t step) const {
    return run::TraceSpan(outputs_.trace.get(), PhaseName(phase), "step",
                          static_cast<int32_t>(phase), step);
  }

  absl::Status RunEvals(int64_t steps, run::StepMetrics* metrics) {
    for (const EvalTask& task : session_.evals) {
      if (state_.step != steps && (task.every == 0 || state_.step % task.every != 0)) continue;
      const run::TraceSpan span = Span(Phase::kEval, state_.step);
      ASSIGN_OR_RETURN(const EvalResult result, Evaluate(task));
      metrics->Set(run::metric::Eval(task.name, "accuracy"), result.accuracy);
      outputs_.console->Note(
          fmt::format("eval {} at step {}: {:.4f} [{:.4f}, {:.4f}] of {} prompts", task.name,
                      state_.step, result.accuracy, result.low, result.high, result.prompts));
    }
    return absl::OkStatus();
  }

  // The prompt as it is sampled from, then the solution and the end-of-sequence token; turns of
  // tools are given, those of the assistant learnt.
  absl::StatusOr<TrainingSequence> ToSequence(const Prompt& row, uint64_t id) const {
    TrainingSequence s;
    s.episode_id = id;
    s.group_id = id;
    ASSIGN_OR_RETURN(s.token_ids, session_.codec->EncodePrompt(row));
    const bool all = experiment_.sft.loss_on == "all";
    s.loss_mask.assign(s.token_ids.size(), all ? 1 : 0);
    if (row.solution_messages.empty()) {
      if (row.solution.empty()) return NoSolution();
      AddTurn(row.solution, &s);
    } else {
      RETURN_IF_ERROR(AddTurns(row, &s));
    }
    if (!s.loss_mask.empty()) s.loss_mask[0] = 0;  // nothing predicts the first token
    const size_t n = s.token_ids.size();
    if (static_cast<int64_t>(n) > session_.store->spec().max_positions) {
      return InvalidInput("prompt and solution have {} tokens, the model's context {}", n,
                          session_.store->spec().max_positions);
    }
    s.advantages.assign(n, 1.0f);
    for (const uint8_t m : s.loss_mask) s.episode_tokens += m;
    return s;
  }

  void AddTurn(const std::string& text, TrainingSequence* s) const {
    std::vector<int32_t> ids = session_.codec->Encode(text);
    ids.push_back(stop_id_);
    s->token_ids.insert(s->token_ids.end(), ids.begin(), ids.end());
    s->loss_mask.insert(s->loss_mask.end(), ids.size(), 1);
  }

  absl::Status AddTurns(const Prompt& row, TrainingSequence* s) const {
    std::vector<Message> messages = row.messages;
    for (size_t i = 0; i < row.solution_messages.size();) {
      AddTurn(row.solution_messages[i].content, s);
      messages.push_back(row.solution_messages[i++]);
      std::vector<Message> reply;
      while (i < row.solution_messages.size() && row.solution_messages[i].role != "assistant") {
        reply.push_back(row.solution_messages[i++]);
      }
      if (reply.empty()) continue;
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       session_.codec->EncodeNextTurn(messages, reply, stop_id_));
      s->token_ids.insert(s->token_ids.end(), ids.begin(), ids.end());
      s->loss_mask.insert(s->loss_mask.end(), ids.size(), 0);
      messages.insert(messages.end(), reply.begin(), reply.end());
    }
    return absl::OkStatus();
  }

  absl::Status Checkpoint() {
    const run::TraceSpan span = Span(Phase::kSave, state_.step);
    for (run::MetricSink* sink : outputs_.sinks()) RETURN_IF_ERROR(sink->Flush());
    run::Checkpoints& checkpoints = directory_.checkpoints();
    ASSIGN_OR_RETURN(const std::string folder, checkpoints.Begin(state_.step));
    absl::Status saved = session_.trainer->Save(folder);
    if (saved.ok()) saved = SaveLoopState(state_, folder);
    if (!saved.ok()) {
      (void)checkpoints.Abort(state_.step);
      return Annotate(saved, fmt::format("checkpoint of step {}", state_.step));
    }
    RETURN_IF_ERROR(directory_.CommitCheckpoint(state_.step));
    return checkpoints.Prune(experiment_.checkpoint.keep, experiment_.checkpoint.keep_every)
        .status();
  }

  const configs::Experiment& experiment_;
  run::RunDirectory& directory_;
  Session& session_;
  Outputs& outputs_;
  LoopState state_;
  const data::DatasetOrder order_;
  const std::function<void(run::StepMetrics*)> machine_metrics_;
  const int32_t stop_id_;
};

absl::StatusOr<std::unique_ptr<Session>> SupervisedSession(const configs::Experiment& experiment) {
  SessionOptions options;
  options.supervised = true;
  return MakeSession(experiment, options);
}

absl::StatusOr<Ending> TrainSupervised(const configs::Experiment& experiment,
                                       run::RunDirectory& directory, Session* session,
                                       LoopState state, const std::string& checkpoint) {
  const std::atomic<bool>& interrupted = InterruptFlag();
  if (state.step == 0) {
    state.data_fingerprint = session->dataset->fingerprint();
  } else if (state.data_fingerprint != session->dataset->fingerprint()) {
    return InvalidInput("data.source {} is not the data this run began with: the rows differ",
                        experiment.data.source);
  }
  SetMachine(&state);
  if (!checkpoint.empty()) {
    RETURN_IF_ERROR(UnusableCheckpoint(session->trainer->Load(checkpoint), directory.checkpoints(),
                                       state.step));
  }
  const int64_t steps =
      experiment.sft.steps > 0
          ? experiment.sft.steps
          : std::max<int64_t>(1,
                              static_cast<int64_t>(experiment.sft.epochs *
                                                   static_cast<double>(session->dataset->size())) /
                                  experiment.sft.batch_size);
  if (state.step >= steps) {
    std::printf(
        "%s: the run is complete (%lld steps); for more, raise sft.steps or sft.epochs in %s\n",
        directory.paths().root.c_str(), static_cast<long long>(state.step),
        directory.paths().experiment().c_str());
    return Ending::kDone;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Outputs> outputs,
                   Outputs::Open(experiment, directory, state.step + 1, steps));
  RETURN_IF_ERROR(outputs->journal->Write(state.step == 0 ? "start" : "resume",
                                          fmt::format("sft from step {}", state.step)));
  if (session->gpu != nullptr) {
    RETURN_IF_ERROR(outputs->journal->Write("memory", plan::Summary(session->plan)));
  }
  const absl::StatusOr<Ending> ending =
      Supervised(experiment, directory, *session, *outputs, std::move(state))
          .Run(steps, interrupted);
  if (!ending.ok()) {
    (void)outputs->journal->Write("error", StatusText(ending.status()));
    return ending;
  }
  RETURN_IF_ERROR(outputs->Finish(directory, *ending));
  return ending;
}

}  // namespace

absl::StatusOr<Ending> Sft(const RunArguments& arguments) {
  ASSIGN_OR_RETURN(const configs::Experiment experiment,
                   configs::LoadExperiment(arguments.file, arguments.overrides));
  RETURN_IF_ERROR(configs::CheckForSft(experiment));
  RETURN_IF_ERROR(run::CheckHoldsNoRun(experiment.RunDirectory()));
  // The session first: a mistake in model or data leaves no folder behind.
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, SupervisedSession(experiment));
  RETURN_IF_ERROR(CheckHasSolutions(*session->dataset));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<run::RunDirectory> directory,
      run::RunDirectory::Create(experiment.RunDirectory(), configs::PrintExperiment(experiment)));
  RETURN_IF_ERROR(WriteFileAtomically(SftMarker(directory->paths()), "orrery sft\n"));
  return TrainSupervised(experiment, *directory, session.get(), {}, {});
}

absl::StatusOr<Ending> ResumeSft(const configs::Experiment& experiment,
                                 run::RunDirectory& directory) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> latest, directory.checkpoints().Latest());
  LoopState state;
  if (latest) {
    ASSIGN_OR_RETURN(state, ReadCheckpoint(directory.checkpoints(), *latest));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, SupervisedSession(experiment));
  if (!latest) {
    RETURN_IF_ERROR(directory.TruncateAfter(-1));
    return TrainSupervised(experiment, directory, session.get(), {}, {});
  }
  RETURN_IF_ERROR(directory.TruncateAfter(state.step));
  return TrainSupervised(experiment, directory, session.get(), state,
                         directory.checkpoints().Path(*latest));
}

}  // namespace orrery::commands

#include "orchestrator/loop/loop.h"

#include <memory>
#include <optional>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "orchestrator/loop/batcher.h"
#include "orchestrator/loop/recorder.h"
#include "orchestrator/run/metric_names.h"
#include "orchestrator/run/step_metrics.h"

namespace orrery {
namespace {

class Loop {
 public:
  Loop(const configs::Experiment& experiment, LoopState state, LoopParts& parts)
      : experiment_(experiment),
        state_(std::move(state)),
        parts_(parts),
        order_(parts.dataset->size(), HashSeed({static_cast<uint64_t>(experiment.run.seed), 1}),
               experiment.data.shuffle),
        recorder_({parts.directory->paths(), experiment.output.samples, parts.pieces, parts.sinks,
                   parts.trace, static_cast<int32_t>(Phase::kWrite)}) {}

  absl::StatusOr<LoopEnd> Run() {
    if (state_.step == 0) RETURN_IF_ERROR(EvaluateBeforeTheFirstStep());
    while (state_.step < experiment_.run.steps) {
      RETURN_IF_ERROR(Step());
      const bool last = state_.step == experiment_.run.steps;
      const bool stop = parts_.interrupted != nullptr && parts_.interrupted->load();
      const int64_t every = experiment_.checkpoint.every;
      if (last || stop || (every > 0 && state_.step % every == 0)) RETURN_IF_ERROR(Checkpoint());
      if (stop && !last) return LoopEnd::kInterrupted;
    }
    return LoopEnd::kDone;
  }

 private:
  absl::Status Step() {
    Stopwatch whole, watch;
    run::StepSeconds seconds;
    run::StepMetrics metrics(state_.step + 1);

    // Rollout and rewards; with dynamic sampling until enough groups have signal.
    auto groups = std::make_shared<std::vector<EpisodeGroup>>();
    RETURN_IF_ERROR(Collect(groups.get(), &seconds));
    RETURN_IF_ERROR(recorder_.Wait());  // for the step before, as a rule written by now

    // Advantages, batches and optimizer steps.
    watch.Lap();
    parts_.advantages(groups.get());
    RETURN_IF_ERROR(recorder_.WriteSamples(metrics.step(), groups));
    ASSIGN_OR_RETURN(const std::optional<TrainStats> trained, TrainOn(*groups, metrics.step()));
    const TrainStats stats = trained.value_or(TrainStats{});
    seconds.train = watch.Lap() - stats.sync_s;
    seconds.sync = stats.sync_s;
    RETURN_IF_ERROR(CheckMismatch(stats, metrics.step()));

    // The record of the step: counts close.
    ++state_.step;
    run::AddRolloutMetrics(*groups, &metrics);
    if (trained) run::AddTrainMetrics(*trained, &metrics);
    RETURN_IF_ERROR(RunEvals(state_.step, &metrics, &seconds.eval));
    seconds.step = whole.Lap();
    run::AddPerfMetrics(seconds, *groups, stats, &metrics);
    if (parts_.machine_metrics) parts_.machine_metrics(&metrics);
    return recorder_.WriteMetrics(std::move(metrics), std::move(groups));
  }

  // Optimizer steps inside the weight transaction. Where no group has a signal, the tokens are
  // measured all the same; none where there is nothing to measure either.
  absl::StatusOr<std::optional<TrainStats>> TrainOn(const std::vector<EpisodeGroup>& groups,
                                                    int64_t step) {
    const int64_t begin_us = run::TraceWriter::NowUs();
    std::vector<TrainingBatch> batches = MakeBatches(groups, ToBatcher(experiment_));
    absl::StatusOr<TrainStats> stats;
    if (batches.empty()) {
      const TrainingBatch sampled = MakeMeasuredBatch(groups);
      if (sampled.sequences.empty()) return std::nullopt;
      stats = parts_.trainer->Measure(sampled);
    } else {
      for (TrainingBatch& batch : batches) {
        if (experiment_.algorithm.kl == "none") break;
        RETURN_IF_ERROR(parts_.trainer->ScoreReference(&batch));
      }
      RETURN_IF_ERROR(parts_.receiver->BeginUpdate(parts_.trainer->version() + batches.size()));
      stats = parts_.trainer->Train(std::move(batches));
      if (stats.ok()) RETURN_IF_ERROR(parts_.receiver->Commit(parts_.trainer->version()));
    }
    if (!stats.ok()) return Annotate(stats.status(), fmt::format("step {}", step));
    TraceTraining(begin_us, stats->sync_s);
    return *stats;
  }

  // The trainer says how long making weights visible took in all, not when: it is drawn at the end.
  void TraceTraining(int64_t begin_us, double sync_s) const {
    if (parts_.trace == nullptr) return;
    const int64_t sync_us = static_cast<int64_t>(sync_s * 1e6);
    const int64_t end_us = run::TraceWriter::NowUs();
    Trace(Phase::kTrain, begin_us, end_us - sync_us - begin_us);
    Trace(Phase::kSync, end_us - sync_us, sync_us);
  }

  void Trace(Phase phase, int64_t begin_us, int64_t duration_us) const {
    parts_.trace->Complete(PhaseName(phase), "step", begin_us, duration_us,
                           static_cast<int32_t>(phase), state_.step + 1);
  }

  // The life of what it returns as a stretch of the step's phase.
  run::TraceSpan Span(Phase phase, int64_t step) const {
    return run::TraceSpan(parts_.trace, PhaseName(phase), "step", static_cast<int32_t>(phase),
                          step);
  }

  absl::Status Collect(std::vector<EpisodeGroup>* groups, run::StepSeconds* seconds) {
    const int64_t wanted = experiment_.rollout.prompts_per_step;
    int64_t with_signal = 0;
    for (int64_t round = 0; with_signal < wanted; ++round) {
      if (round == MostRounds(experiment_.algorithm)) {
        return Failed(
            "step {}: after {} refills only {} of {} groups have different rewards; the task "
            "is too easy or too hard, or the reward never varies (algorithm.max_refills, "
            "algorithm.dynamic_sampling)",
            state_.step + 1, round - 1, with_signal, wanted);
      }
      std::vector<EpisodeGroup> more = NextGroups(wanted - with_signal);
      Stopwatch watch;
      {
        const run::TraceSpan span = Span(Phase::kGenerate, state_.step + 1);
        RETURN_IF_ERROR(parts_.runner->Run(&more));
      }
      seconds->rollout += watch.Lap();
      {
        const run::TraceSpan span = Span(Phase::kReward, state_.step + 1);
        parts_.grader->Grade(&more);
      }
      seconds->reward += watch.Lap();
      for (EpisodeGroup& group : more) {
        const bool filtered = experiment_.algorithm.dynamic_sampling && IsZeroStd(group);
        if (filtered) Filter(&group);
        with_signal += filtered ? 0 : 1;
        groups->push_back(std::move(group));
      }
    }
    return absl::OkStatus();
  }

  static void Filter(EpisodeGroup* group) {
    for (Episode& episode : group->episodes) {
      if (episode.status == EpisodeStatus::kScored) episode.status = EpisodeStatus::kFiltered;
    }
  }

  std::vector<EpisodeGroup> NextGroups(int64_t count) {
    std::vector<EpisodeGroup> groups(static_cast<size_t>(count));
    for (EpisodeGroup& group : groups) {
      group.group_id = state_.next_group_id++;
      group.prompt = parts_.dataset->Row(order_.Index(state_.data_position++));
      for (int64_t i = 0; i < experiment_.rollout.samples_per_prompt; ++i) {
        Episode episode;
        episode.episode_id = state_.next_episode_id++;
        episode.group_id = group.group_id;
        episode.index_in_group = static_cast<int32_t>(i);
        episode.seed = HashSeed({static_cast<uint64_t>(experiment_.run.seed), episode.episode_id});
        group.episodes.push_back(std::move(episode));
      }
    }
    return groups;
  }

  absl::Status CheckMismatch(const TrainStats& stats, int64_t step) const {
    const double limit = experiment_.algorithm.max_logprob_diff;
    if (limit <= 0 || stats.train_rollout_logprob_abs_diff_max <= limit) return absl::OkStatus();
    return Failed(
        "step {}: a log-prob of the sampler and the trainer differ by {}, more than "
        "algorithm.max_logprob_diff {}",
        step, stats.train_rollout_logprob_abs_diff_max, limit);
  }

  absl::Status EvaluateBeforeTheFirstStep() {
    if (parts_.evals->empty()) return absl::OkStatus();
    run::StepMetrics metrics(0);
    double seconds = 0;
    RETURN_IF_ERROR(RunEvals(0, &metrics, &seconds));
    metrics.Set(run::metric::kEvalSeconds, seconds);
    return recorder_.WriteMetrics(std::move(metrics));
  }

  absl::Status RunEvals(int64_t step, run::StepMetrics* metrics, double* seconds) {
    for (const EvalTask& task : *parts_.evals) {
      const bool due =
          step == 0 || step == experiment_.run.steps || (task.every > 0 && step % task.every == 0);
      if (!due) continue;
      Stopwatch watch;
      const run::TraceSpan span = Span(Phase::kEval, step);
      const auto record = [&](std::vector<EpisodeGroup> groups) {
        return recorder_.AddEval(step, task.name, std::move(groups));
      };
      ASSIGN_OR_RETURN(const EvalResult result, Evaluate(task, record));
      RETURN_IF_ERROR(recorder_.EndEval(step));
      *seconds += watch.Lap();
      metrics->Set(run::metric::Eval(task.name, "accuracy"), result.accuracy);
      metrics->Set(run::metric::Eval(task.name, "accuracy_low"), result.low);
      metrics->Set(run::metric::Eval(task.name, "accuracy_high"), result.high);
      metrics->Set(run::metric::Eval(task.name, "truncated_ratio"), result.truncated_ratio);
      metrics->Set(run::metric::Eval(task.name, "response_len"), result.response_len);
      for (const auto& [k, value] : result.pass_at_k) {
        if (k > 1) metrics->Set(run::metric::Eval(task.name, fmt::format("pass@{}", k)), value);
      }
      parts_.note(fmt::format("eval {} at step {}: {:.4f} [{:.4f}, {:.4f}] of {} prompts",
                              task.name, step, result.accuracy, result.low, result.high,
                              result.prompts));
    }
    return absl::OkStatus();
  }

  absl::Status Checkpoint() {
    const run::TraceSpan span = Span(Phase::kSave, state_.step);
    RETURN_IF_ERROR(recorder_.Wait());
    run::Checkpoints& checkpoints = parts_.directory->checkpoints();
    for (run::MetricSink* sink : parts_.sinks) RETURN_IF_ERROR(sink->Flush());
    if (parts_.trace != nullptr) RETURN_IF_ERROR(parts_.trace->Flush());
    ASSIGN_OR_RETURN(const std::string folder, checkpoints.Begin(state_.step));
    absl::Status saved = parts_.trainer->Save(folder);
    if (saved.ok()) saved = SaveLoopState(state_, folder);
    if (!saved.ok()) {
      (void)checkpoints.Abort(state_.step);
      return Annotate(saved, fmt::format("checkpoint of step {}", state_.step));
    }
    RETURN_IF_ERROR(parts_.directory->CommitCheckpoint(state_.step));
    RETURN_IF_ERROR(
        parts_.journal->WriteForStep(state_.step, "checkpoint", checkpoints.Path(state_.step)));
    ASSIGN_OR_RETURN(
        const std::vector<int64_t> removed,
        checkpoints.Prune(experiment_.checkpoint.keep, experiment_.checkpoint.keep_every));
    (void)removed;
    return absl::OkStatus();
  }

  const configs::Experiment& experiment_;
  LoopState state_;
  LoopParts& parts_;
  const data::DatasetOrder order_;
  Recorder recorder_;
};

}  // namespace

int64_t MostRounds(const configs::AlgorithmConfig& algorithm) {
  return algorithm.dynamic_sampling ? algorithm.max_refills + 1 : 1;
}

int64_t MostGroups(const configs::Experiment& experiment) {
  return experiment.rollout.prompts_per_step * MostRounds(experiment.algorithm);
}

const char* PhaseName(Phase phase) {
  constexpr const char* kNames[] = {"generate", "reward", "train", "sync", "eval", "save", "write"};
  return kNames[static_cast<int32_t>(phase) - 1];
}

void NamePhases(std::string_view run, run::TraceWriter* trace) {
  trace->NameProcess(run);
  for (auto p = static_cast<int32_t>(Phase::kGenerate); p <= static_cast<int32_t>(Phase::kWrite);
       ++p) {
    trace->NameTrack(p, PhaseName(static_cast<Phase>(p)));
  }
}

absl::StatusOr<LoopEnd> RunLoop(const configs::Experiment& experiment, LoopState state,
                                LoopParts& parts) {
  return Loop(experiment, std::move(state), parts).Run();
}

}  // namespace orrery

// orrery replay: a recorded step again, from the checkpoint before it, compared bit for bit.
#include <algorithm>
#include <cstdio>

#include "configs/yaml.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/checkpoint_check.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/session.h"
#include "orchestrator/loop/batcher.h"
#include "orchestrator/loop/loop_state.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/samples.h"
#include "orchestrator/run/step_metrics.h"

namespace orrery::commands {
namespace {

absl::StatusOr<run::StepMetrics> RecordedMetrics(const std::string& directory, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<run::StepMetrics> all, run::ReadMetrics(directory));
  for (const run::StepMetrics& metrics : all) {
    if (metrics.step() == step) return metrics;
  }
  return NotFound("{}: metrics.jsonl has no line of step {}", directory, step);
}

// The trainer at the end of step `step`.
absl::Status LoadStep(const run::RunPaths& paths, int64_t step, Session* session) {
  if (step == 0) return absl::OkStatus();  // the session starts there
  const run::Checkpoints checkpoints(paths.checkpoints());
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, checkpoints.List());
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
    return NotFound(
        "{}: replaying step {} needs the checkpoint of step {}, which is not kept; set "
        "checkpoint.every and checkpoint.keep for it",
        paths.root, step + 1, step);
  }
  RETURN_IF_ERROR(CheckCheckpoint(checkpoints.Path(step), CheckpointUse::kState));
  return session->trainer->Load(checkpoints.Path(step));
}

// Compares the train/ metrics; prints what differs.
bool SameTraining(const TrainStats& stats, const run::StepMetrics& recorded) {
  run::StepMetrics again(recorded.step());
  run::AddTrainMetrics(stats, &again);
  bool same = true;
  for (const auto& [name, value] : again.values()) {
    const std::optional<double> before = recorded.Find(name);
    if (before && *before == value) continue;
    same = false;
    std::printf("differs  %s  recorded %.17g  replayed %.17g\n", name.c_str(), before.value_or(0),
                value);
  }
  return same;
}

absl::Status Verdict(const char* what, int64_t step, bool same) {
  std::printf("%s of step %lld: %s\n", what, static_cast<long long>(step),
              same ? "bitwise equal" : "NOT equal");
  return same ? absl::OkStatus() : Failed("the replayed step differs from the recorded one");
}

absl::Status ReplayTraining(const configs::Experiment& e, const run::RunPaths& paths, int64_t step,
                            Session* session) {
  ASSIGN_OR_RETURN(const run::StepSamples samples, run::ReadSamples(paths.samples_of(step)));
  ASSIGN_OR_RETURN(const run::StepMetrics recorded, RecordedMetrics(paths.root, step));
  std::vector<TrainingBatch> batches = MakeBatches(samples.groups, ToBatcher(e));
  for (TrainingBatch& batch : batches) {
    if (e.algorithm.kl != "none") RETURN_IF_ERROR(session->trainer->ScoreReference(&batch));
  }
  TrainStats stats;
  if (batches.empty()) {
    const TrainingBatch sampled = MakeMeasuredBatch(samples.groups);
    if (sampled.sequences.empty()) return Verdict("training of nothing", step, true);
    ASSIGN_OR_RETURN(stats, session->trainer->Measure(sampled));
  } else {
    ASSIGN_OR_RETURN(stats, session->trainer->Train(std::move(batches)));
  }
  return Verdict("training", step, SameTraining(stats, recorded));
}

// The recorded groups as they were before anything was sampled.
std::vector<EpisodeGroup> Unsampled(const std::vector<EpisodeGroup>& groups) {
  std::vector<EpisodeGroup> out;
  for (const EpisodeGroup& group : groups) {
    EpisodeGroup fresh{group.group_id, group.prompt, {}};
    for (const Episode& recorded : group.episodes) {
      Episode episode;
      episode.episode_id = recorded.episode_id;
      episode.group_id = recorded.group_id;
      episode.index_in_group = recorded.index_in_group;
      episode.seed = recorded.seed;
      fresh.episodes.push_back(std::move(episode));
    }
    out.push_back(std::move(fresh));
  }
  return out;
}

bool SameRouting(const Sample& a, const Sample& b) {
  const auto &x = a.routed_experts, &y = b.routed_experts;
  if (x == nullptr || y == nullptr) return x == y;
  if (x->token_bytes() != y->token_bytes() || x->num_positions() != y->num_positions()) {
    return false;
  }
  for (int64_t p = 0; p < x->num_positions(); ++p) {
    if (!std::equal(x->At(p), x->At(p) + x->token_bytes(), y->At(p))) return false;
  }
  return true;
}

bool SameSamples(const Episode& a, const Episode& b) {
  if (a.samples.size() != b.samples.size()) return false;
  for (size_t s = 0; s < a.samples.size(); ++s) {
    const auto &x = a.samples[s].segments, &y = b.samples[s].segments;
    if (!SameRouting(a.samples[s], b.samples[s])) return false;
    if (x.size() != y.size() || a.samples[s].finish_reason != b.samples[s].finish_reason) {
      return false;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].token_ids != y[i].token_ids || x[i].logprobs != y[i].logprobs ||
          x[i].versions != y[i].versions) {
        return false;
      }
    }
  }
  return true;
}

absl::Status ReplayRollout(const run::RunPaths& paths, int64_t step, Session* session) {
  ASSIGN_OR_RETURN(const run::StepSamples samples, run::ReadSamples(paths.samples_of(step)));
  std::vector<EpisodeGroup> groups = Unsampled(samples.groups);
  RETURN_IF_ERROR(session->runner->Run(&groups));
  session->grader->Grade(&groups);
  int64_t different = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].episodes.size(); ++i) {
      const Episode &now = groups[g].episodes[i], &then = samples.groups[g].episodes[i];
      if (SameSamples(now, then) && now.outcome.score == then.outcome.score) continue;
      if (different++ < 5) {
        std::printf("differs  episode %llu\n", static_cast<unsigned long long>(then.episode_id));
      }
    }
  }
  return Verdict("rollout", step, different == 0);
}

}  // namespace

absl::Status Replay(const std::string& directory, int64_t step, bool rollout) {
  const run::RunPaths paths(directory);
  if (!run::HoldsRun(directory)) return NotFound("{}: holds no run", directory);
  if (step < 1) return InvalidInput("--step must be 1 or more");
  ASSIGN_OR_RETURN(const configs::Experiment experiment,
                   configs::LoadExperiment(paths.experiment()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(experiment, {}));
  RETURN_IF_ERROR(LoadStep(paths, step - 1, session.get()));
  return rollout ? ReplayRollout(paths, step, session.get())
                 : ReplayTraining(experiment, paths, step, session.get());
}

}  // namespace orrery::commands

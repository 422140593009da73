#include "orchestrator/commands/bench.h"

#include <cstdio>

#include "configs/yaml.h"
#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "orchestrator/commands/algorithm.h"
#include "orchestrator/commands/session.h"
#include "orchestrator/doctor/system.h"
#include "orchestrator/loop/batcher.h"
#include "rewards/advantage.h"

namespace orrery::commands {
namespace {

// The first prompts of the dataset, the same for every run; other seeds each time.
std::vector<EpisodeGroup> MakeGroups(const configs::Experiment& e, const data::Dataset& dataset,
                                     int64_t round) {
  std::vector<EpisodeGroup> groups(static_cast<size_t>(e.rollout.prompts_per_step));
  uint64_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].group_id = g;
    groups[g].prompt = dataset.Row(static_cast<int64_t>(g) % dataset.size());
    for (int64_t i = 0; i < e.rollout.samples_per_prompt; ++i) {
      Episode episode;
      episode.episode_id = next++;
      episode.group_id = g;
      episode.index_in_group = static_cast<int32_t>(i);
      episode.seed = HashSeed(
          {static_cast<uint64_t>(e.run.seed), static_cast<uint64_t>(round), episode.episode_id});
      groups[g].episodes.push_back(std::move(episode));
    }
  }
  return groups;
}

absl::Status CountTokens(const std::vector<EpisodeGroup>& groups, BenchRun* run) {
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) {
      if (episode.status == EpisodeStatus::kFailed) {
        return Failed("episode {} could not run: {}", episode.episode_id, episode.outcome.why);
      }
      for (const Sample& sample : episode.samples) {
        run->generated_tokens += static_cast<int64_t>(sample.num_policy_tokens());
      }
    }
    const std::vector<Sample>& samples = group.episodes[0].samples;
    if (samples.empty() || samples[0].segments.empty()) continue;
    run->prompt_tokens += static_cast<int64_t>(samples[0].segments[0].token_ids.size());
  }
  return absl::OkStatus();
}

absl::Status Learn(const configs::Experiment& e, std::vector<EpisodeGroup>* groups,
                   Session* session, Stopwatch* watch, BenchRun* run) {
  ASSIGN_OR_RETURN(const rewards::AdvantageOptions advantages, ToAdvantages(e.algorithm));
  rewards::AssignAdvantages(advantages, groups);
  std::vector<TrainingBatch> batches = MakeBatches(*groups, ToBatcher(e));
  if (batches.empty()) {
    return InvalidInput(
        "no group has different rewards, so there is nothing to train; set "
        "algorithm.drop_zero_std_groups=false to measure with all samples");
  }
  for (TrainingBatch& batch : batches) {
    if (e.algorithm.kl != "none") RETURN_IF_ERROR(session->trainer->ScoreReference(&batch));
  }
  run->other += watch->Lap();
  RETURN_IF_ERROR(session->engine->BeginUpdate(session->trainer->version() + batches.size()));
  ASSIGN_OR_RETURN(const TrainStats stats, session->trainer->Train(std::move(batches)));
  RETURN_IF_ERROR(session->engine->Commit(session->trainer->version()));
  run->sync = stats.sync_s;
  run->train = watch->Lap() - stats.sync_s;
  return absl::OkStatus();
}

absl::StatusOr<BenchRun> RunOnce(BenchKind kind, const configs::Experiment& e, int64_t round,
                                 Session* session) {
  BenchRun run;
  Stopwatch watch;
  std::vector<EpisodeGroup> groups = MakeGroups(e, *session->dataset, round);
  if (kind == BenchKind::kStep) run.other = watch.Lap();
  RETURN_IF_ERROR(session->runner->Run(&groups));
  run.rollout = watch.Lap();
  if (kind == BenchKind::kStep) {
    session->grader->Grade(&groups);
    run.reward = watch.Lap();
    RETURN_IF_ERROR(Learn(e, &groups, session, &watch, &run));
  }
  RETURN_IF_ERROR(CountTokens(groups, &run));
  return run;
}

}  // namespace

absl::Status Bench(BenchKind kind, const BenchArguments& arguments) {
  if (arguments.repeat < 1) return InvalidInput("--repeat {}: at least 1", arguments.repeat);
  // Sampling that training would refuse is allowed: min_new_tokens makes responses of one length,
  // and what it costs does not depend on what is learnt from it.
  ASSIGN_OR_RETURN(configs::Experiment e,
                   configs::LoadExperiment(arguments.run.file, arguments.run.overrides));
  e.evals.clear();
  SessionOptions options;
  options.for_training = kind == BenchKind::kStep;
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(e, options));
  std::vector<BenchRun> runs;
  for (int64_t round = 0; round <= arguments.repeat; ++round) {
    ASSIGN_OR_RETURN(const BenchRun run, RunOnce(kind, e, round, session.get()));
    if (round > 0) runs.push_back(run);  // the first one warms up
  }
  BenchSetting setting;
  setting.kind = kind;
  setting.model = e.model.path;
  setting.dtype = e.model.dtype;
  setting.machine = doctor::CpuModel("");
  setting.threads = kernels::NumThreads();
  setting.prompts = e.rollout.prompts_per_step;
  setting.samples = e.rollout.samples_per_prompt;
  const std::string text = arguments.json ? BenchJson(setting, runs) : BenchText(setting, runs);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace orrery::commands

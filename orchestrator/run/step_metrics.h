// From the typed results of a step to its metrics: the one place where a name of metric_names.h
// meets the value it stands for.
#pragma once

#include <vector>

#include "orchestrator/run/metrics.h"
#include "orchestrator/types.h"

namespace orrery::run {

// rollout/*: rewards, lengths, truncation, counts. `groups` are all groups of the step, those that
// were filtered out among them. Where not one episode was scored, what would be a mean over nothing
// is left out. REQUIRES: every episode is in a terminal state.
void AddRolloutMetrics(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics);

// train/* and rollout/entropy, which the trainer computes exactly.
void AddTrainMetrics(const TrainStats& stats, StepMetrics* metrics);

struct StepSeconds {
  double step = 0;
  double rollout = 0;
  double reward = 0;
  double train = 0;
  double sync = 0;
  double eval = 0;
};

// perf/*: the seconds, what they leave of the step, tokens a second (sampled ones of `groups` over
// the rollout; processed ones of `stats` over the training) and the memory of this process.
void AddPerfMetrics(const StepSeconds& seconds, const std::vector<EpisodeGroup>& groups,
                    const TrainStats& stats, StepMetrics* metrics);

struct GpuMemory {
  int64_t peak_bytes = 0, planned_bytes = 0;
  double turn_seconds = 0;  // of this step
};
void AddGpuMemory(const GpuMemory& memory, StepMetrics* metrics);

// Of the engine, in this step.
struct EngineUse {
  int64_t preemptions = 0, swaps = 0, swapped_bytes = 0;
};
void AddEngineUse(const EngineUse& use, StepMetrics* metrics);

// Resident memory of this process; 0 where the system does not say.
double ResidentBytes();

}  // namespace orrery::run

// The RL loop, written on interfaces alone.
//
// What each stage of a step waits for (synchronous schedule; `|` is a point where all must be
// done):
//
//   dataset order ──> prompts ──> episodes ──|──> rewards ──|──> advantages, batches
//                                  (engine)                        |
//                     next step <──|── evaluation,  <────────|── optimizer steps
//                                      checkpoint                  (weight transaction)
//
// One thread runs it; another one writes (Recorder): a step's samples from the time that they have
// their advantages, then its metrics. That goes on into the next step's rollout: the loop waits for
// it before the advantages that follow, and before a checkpoint. Everything is borrowed from the
// caller and outlives the loop.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "configs/experiment.h"
#include "orchestrator/data/dataset.h"
#include "orchestrator/interfaces.h"
#include "orchestrator/loop/evaluation.h"
#include "orchestrator/loop/loop_state.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/samples.h"
#include "orchestrator/run/trace.h"

namespace orrery {

// Samples are alive from their rollout until they are written, which may go on into the next step's
// rollout: of so many steps at a time.
inline constexpr int64_t kStepsAlive = 2;
// Groups of one step, at most. With dynamic sampling a round makes as many new ones as lack a
// signal, and all stay for the record, so that each round may add as many as the first.
int64_t MostRounds(const configs::AlgorithmConfig& algorithm);
int64_t MostGroups(const configs::Experiment& experiment);

struct LoopParts {
  const data::Dataset* dataset = nullptr;
  EpisodeRunner* runner = nullptr;
  Grader* grader = nullptr;
  // Sets Episode::advantage of scored episodes.
  std::function<void(std::vector<EpisodeGroup>*)> advantages;
  Trainer* trainer = nullptr;
  WeightReceiver* receiver = nullptr;
  std::vector<EvalTask>* evals = nullptr;
  run::RunDirectory* directory = nullptr;
  run::Journal* journal = nullptr;
  std::vector<run::MetricSink*> sinks;
  run::TraceWriter* trace = nullptr;           // may be null
  run::PieceDecoder pieces;                    // for samples; may be empty
  std::function<void(std::string_view)> note;  // a line for the person at the terminal
  // What the machine says at the end of a step; may be empty.
  std::function<void(run::StepMetrics*)> machine_metrics;
  const std::atomic<bool>* interrupted = nullptr;  // end after this step, with a checkpoint
};

// Rows of trace.json, from the top.
enum class Phase : int32_t { kGenerate = 1, kReward, kTrain, kSync, kEval, kSave, kWrite };
const char* PhaseName(Phase phase);
void NamePhases(std::string_view run, run::TraceWriter* trace);

enum class LoopEnd : uint8_t { kDone, kInterrupted };

// From `state` (step done) to experiment.run.steps. On an error the last checkpoint stands, and
// what was written after it is cut off by the next resume.
absl::StatusOr<LoopEnd> RunLoop(const configs::Experiment& experiment, LoopState state,
                                LoopParts& parts);

}  // namespace orrery

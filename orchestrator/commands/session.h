// Everything a command needs of an experiment, built from it by constructor: the composition root.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/experiment.h"
#include "orchestrator/commands/gpu.h"
#include "orchestrator/commands/memory.h"
#include "orchestrator/data/dataset.h"
#include "orchestrator/loop/evaluation.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/samples.h"
#include "rollout/engine.h"
#include "rollout/episodes/runner.h"
#include "rollout/text/codec.h"
#include "trainer/policy_trainer.h"

namespace orrery::commands {

struct SessionOptions {
  bool for_training = true;  // refuse sampling that training cannot score; make a trainer
  bool supervised = false;   // sft: cross-entropy instead of the policy loss
};

struct Session {
  configs::Experiment experiment;  // as given, the device resolved
  std::string model_folder;
  std::unique_ptr<rollout::CheckpointCodec> codec;
  std::unique_ptr<data::Dataset> dataset;
  // Of the rows, for sizing memory: tokens of the longest prompt, and where supervised solution.
  int64_t longest_prompt = 0, longest_solution = 0;
  plan::MemoryPlan plan;
  std::unique_ptr<model::WeightStore> store;
  std::unique_ptr<Gpu> gpu;  // null on the CPU
  std::unique_ptr<Grader> grader;
  std::unique_ptr<trainer::PolicyTrainer> trainer;  // null unless for_training
  std::unique_ptr<rollout::Engine> engine;          // goes before what it borrows
  std::unique_ptr<EpisodeRunner> runner;
  std::vector<EvalTask> evals;

  // Thread-safe, for as long as the session lives.
  run::PieceDecoder Pieces() const {
    return [codec = codec.get()](std::span<const int32_t> ids) { return codec->Pieces(ids); };
  }
};

absl::StatusOr<std::unique_ptr<Session>> MakeSession(const configs::Experiment& experiment,
                                                     const SessionOptions& options);

// The memory that such a session would take, found out before anything of it is taken: of the
// model only its configuration and tokenizer are read. gpu: none where the CPU computes.
absl::StatusOr<plan::MemoryPlan> PlanSession(const configs::Experiment& experiment,
                                             const SessionOptions& options,
                                             const std::optional<kernels::DeviceLimits>& gpu);

// Adds what the session's GPU takes, where there is one, and how often its engine was short of
// room, where it sampled. The session is borrowed.
std::function<void(run::StepMetrics*)> MachineMetrics(const Session* session);

// hf: sources to local paths, with progress on standard error.
absl::StatusOr<std::string> ResolveDataSource(const std::string& source);
absl::StatusOr<std::string> ResolveModelSource(const std::string& source);

// Eos ids of the checkpoint and those of the experiment.
SamplingOptions ToSampling(const configs::SamplingConfig& config, const model::ModelSpec& spec);

}  // namespace orrery::commands

// The memory of an experiment before anything is allocated: for `orrery plan`, and for every
// session, which obeys or refuses by the same plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/tensor_view.h"
#include "orchestrator/plan/memory_plan.h"
#include "trainer/batch_bounds.h"
#include "trainer/model/model_spec.h"

namespace orrery::commands {

// What of an experiment decides it.
struct MemoryQuestion {
  const configs::Experiment& experiment;
  const model::ModelSpec& spec;
  bool for_training = true;
  bool supervised = false;
  int64_t longest_prompt = 0;    // tokens
  int64_t longest_solution = 0;  // tokens; supervised
};

kernels::DType ToDType(const configs::ModelConfig& config);

// Whether a reference model is held beside the policy.
bool HasReference(const MemoryQuestion& question);
// Tokens of the longest sequence, prompt and responses.
int64_t SequenceTokens(const MemoryQuestion& question);
// What the trainer's batches can be.
trainer::BatchBounds BoundsOf(const MemoryQuestion& question);
// Samples that are held at once: of rollouts and of evaluations.
void AddSamples(const MemoryQuestion& question, plan::MemoryNeeds* needs);
// How many blocks of keys and values the engine would have.
plan::KvNeeds NeedsOfKv(const MemoryQuestion& question, int64_t block_bytes);

// gpu: null where the CPU computes. FailedPrecondition where this binary has no GPU's code.
absl::StatusOr<plan::MemoryPlan> PlanMemory(const MemoryQuestion& question,
                                            const std::optional<kernels::DeviceLimits>& gpu);

// What does not fit as the caller's mistake, for commands where that is all that went wrong: not
// the machine failed, and another setting helps. Other statuses pass.
absl::Status AsSettingsMistake(const absl::Status& status);
template <typename T>
absl::StatusOr<T> AsSettingsMistake(absl::StatusOr<T> result) {
  if (!result.ok()) return AsSettingsMistake(result.status());
  return result;
}

// A GPU of the tables (h200, b200, rubin) with so much memory (0: the table's), as if nothing else
// ran on it.
absl::StatusOr<kernels::DeviceLimits> GpuOfTable(const std::string& name, int64_t memory_bytes);

}  // namespace orrery::commands

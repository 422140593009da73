// A whole rollout phase on the GPU at hand: the engine as a run uses it (scheduler, prefix sharing,
// graphs, sampling), with random weights and responses of given lengths.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/plan/memory_plan.h"
#include "rollout/cuda/cuda_ops.h"
#include "trainer/model/model_spec.h"

namespace orrery::rollout::cuda {

struct RolloutBenchOptions {
  int64_t prompts = 256;
  int64_t samples = 8;
  int64_t prompt_tokens = 100;
  std::vector<int64_t> lengths;  // of the responses, used in turn
  int64_t max_running = 2048;
  int64_t prefill_chunk_tokens = 4096;
  int64_t kv_tokens = 0;    // 0: what there is room for
  int64_t swap_tokens = 0;  // of pinned memory for preempted responses; 0: they are recomputed
  int64_t repeat = 1;       // phases, each with prompts of its own
  uint64_t seed = 1;
  Numerics numerics = Numerics::kFast;
  KvFormat kv_format = KvFormat::kModel;
};

struct RolloutPhase {
  double seconds = 0;       // from submitting to the last token
  double tail_seconds = 0;  // the last tenth of the responses
  int64_t new_tokens = 0;
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t swaps = 0;  // of them
  int64_t swapped_out_bytes = 0, swapped_in_bytes = 0;
  double tokens_per_second() const { return static_cast<double>(new_tokens) / seconds; }
};

struct RolloutBenchReport {
  double load_seconds = 0;         // weights made, memory taken
  double first_token_seconds = 0;  // from submitting
  // The first has steps of sizes that were never run: their kernels are loaded in it.
  std::vector<RolloutPhase> phases;
};

// What the measurement takes of a GPU; needs none. Keys and values: kv_tokens or none at all, else
// what there is room for, a sequence at least.
plan::MemoryPlan PlanRolloutBench(const model::ModelSpec& spec, const RolloutBenchOptions& options,
                                  const kernels::DeviceLimits& device);

// ResourceExhausted, before anything is taken, where that does not fit.
absl::StatusOr<RolloutBenchReport> RunRolloutBench(const model::ModelSpec& spec,
                                                   const RolloutBenchOptions& options);

}  // namespace orrery::rollout::cuda

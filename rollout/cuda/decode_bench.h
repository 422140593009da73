// Decode speed of a model's shape on the GPU at hand, with random weights: the executor's own path
// (graphs, sampling, tokens fed back on the device), against the memory roof computed from the
// bytes that a step must read and the copy ceiling measured in the same run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/plan/memory_plan.h"
#include "rollout/cuda/cuda_ops.h"
#include "trainer/model/model_spec.h"

namespace orrery::rollout::cuda {

struct DecodeBenchOptions {
  std::vector<int64_t> batches;
  int64_t context = 1024;  // mean over the measured steps
  int64_t steps = 128;
  uint64_t seed = 1;
  Numerics numerics = Numerics::kFast;
  KvFormat kv_format = KvFormat::kModel;
};

struct DecodeBenchResult {
  int64_t batch = 0;
  double step_ms = 0;  // mean of the measured steps, launch of the first to end of the last
  double tokens_per_second = 0;
  double experts_touched = 0;  // a layer, in the last step
  double bytes = 0;            // weights and keys and values that a step must read
  double roof_tokens_per_second = 0;
  double share() const { return tokens_per_second / roof_tokens_per_second; }
};

struct DecodeBenchReport {
  double copy_bytes_per_second = 0;  // device to device, read and written bytes counted
  double load_seconds = 0;           // weights made, memory taken
  std::vector<DecodeBenchResult> results;
};

// What the measurement takes of a GPU; needs none.
plan::MemoryPlan PlanDecodeBench(const model::ModelSpec& spec, const DecodeBenchOptions& options,
                                 const kernels::DeviceLimits& device);

// ResourceExhausted, before anything is taken, where that does not fit.
absl::StatusOr<DecodeBenchReport> RunDecodeBench(const model::ModelSpec& spec,
                                                 const DecodeBenchOptions& options);

}  // namespace orrery::rollout::cuda

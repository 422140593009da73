// Speed of a training step on the GPU at hand for a model's shape, with random weights: forward,
// backward and optimizer over packed micro-batches, as a share of the matmul ceiling measured in
// the same run. Model FLOPs: 6 x active matrix parameters a token, and causal attention; what
// recompute adds is not counted.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/cuda/numerics.h"
#include "orchestrator/plan/memory_plan.h"
#include "trainer/model/model_spec.h"

namespace orrery::trainer {

struct TrainBenchOptions {
  int64_t micro_batch_tokens = 16384;
  int64_t sequence_tokens = 2048;
  int64_t micro_batches = 4;  // a step
  int64_t steps = 3;          // measured, after one that is not
  bool recompute = false;
  uint64_t seed = 1;
  kernels::cuda::Numerics numerics = kernels::cuda::Numerics::kFast;
};

struct TrainBenchReport {
  double step_seconds = 0;  // mean
  double tokens_per_second = 0;
  double model_flops = 0;               // of a step
  double ceiling_flops_per_second = 0;  // an 8192 x 8192 x 8192 bfloat16 product
  double memory_bytes = 0;              // taken on the device in all, as the driver says
  double planned_bytes = 0;             // as a dry run said before, without code of kernels
  double mfu() const { return model_flops / step_seconds / ceiling_flops_per_second; }
};

// What the measurement takes of a GPU; needs none.
plan::MemoryPlan PlanTrainBench(const model::ModelSpec& spec, const TrainBenchOptions& options,
                                const kernels::DeviceLimits& device);

// ResourceExhausted, before anything is taken, where that does not fit.
absl::Status CheckTrainBench(const plan::MemoryPlan& plan, const TrainBenchOptions& options);

// Refuses what CheckTrainBench does.
absl::StatusOr<TrainBenchReport> RunTrainBench(const model::ModelSpec& spec,
                                               const TrainBenchOptions& options);

}  // namespace orrery::trainer

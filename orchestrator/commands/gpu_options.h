// An experiment's settings as the GPU's executors take them. Only in builds with a CUDA toolkit.
#pragma once

#include "configs/experiment.h"
#include "orchestrator/commands/memory.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "trainer/cuda/cuda_training_ops.h"

namespace orrery::commands {

kernels::cuda::Numerics NumericsOf(const configs::Experiment& experiment);
// Without blocks of keys and values.
rollout::cuda::CudaPassExecutorOptions EngineOptionsOf(const configs::Experiment& experiment,
                                                       const model::ModelSpec& spec);

// What the largest micro-batches of the experiment take.
trainer::TrainingBytes TrainingNeeds(const MemoryQuestion& question,
                                     const kernels::DeviceLimits& gpu);

// Whether the model's keys and values can be held so.
absl::Status CheckKvFormat(rollout::cuda::KvFormat format, const model::ModelSpec& spec,
                           kernels::DType dtype);

}  // namespace orrery::commands

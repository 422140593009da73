// What a measurement of the engine takes of a GPU, where no experiment says it. Pure: needs none.
#pragma once

#include "kernels/cuda/device_limits.h"
#include "orchestrator/plan/memory_plan.h"
#include "rollout/cuda/cuda_ops.h"

namespace orrery::rollout::cuda {

// Weights in bfloat16 and the executor with such limits; kv_blocks of these counts for nothing.
plan::MemoryNeeds NeedsOfEngine(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                                const OpsLimits& limits);

plan::MemoryLimits LimitsOf(const kernels::DeviceLimits& device);

}  // namespace orrery::rollout::cuda

// The rollout engine on a GPU, from an experiment. FailedPrecondition where there is no GPU or the
// binary was built without a CUDA toolkit; ResourceExhausted, with numbers, where it does not fit.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "rollout/engine.h"

namespace orrery::commands {

// options: of the CPU's engine; kv_blocks is what is wanted, and may become less where the
// experiment leaves it open. store and codec are borrowed.
absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeGpuEngine(
    const configs::Experiment& experiment, const rollout::EngineOptions& options,
    const model::WeightStore* store, const TextCodec* codec);

}  // namespace orrery::commands

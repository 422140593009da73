// The GPU's side of an experiment: weights that engine and trainer share, and the two built over
// them. FailedPrecondition where there is no GPU or the binary was built without a CUDA toolkit;
// ResourceExhausted, with numbers, where something does not fit.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "rollout/engine.h"
#include "trainer/executor.h"
#include "trainer/model/weight_store.h"

namespace orrery::commands {

// run.device: auto becomes cuda where this binary and this machine have it, else cpu.
void ResolveDevice(configs::Experiment* experiment);

class Gpu {
 public:
  // experiment and store are borrowed; the store's weights are copied to the device, and
  // checkpoints are written through it.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const configs::Experiment& experiment,
                                                   model::WeightStore* store);
  virtual ~Gpu() = default;

  // reference: frozen weights, or null. At most once, before the engine: it leaves room.
  virtual absl::StatusOr<std::unique_ptr<trainer::Executor>> MakeExecutor(
      const trainer::ExecutorOptions& options, const model::WeightStore* reference) = 0;

  // options: of the CPU's engine; kv_blocks is what is wanted, and may become less where the
  // experiment leaves it open. codec: borrowed.
  virtual absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(
      const rollout::EngineOptions& options, const TextCodec* codec) = 0;
};

}  // namespace orrery::commands

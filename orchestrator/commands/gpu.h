// The GPU's side of an experiment: weights that engine and trainer share, and the two built over
// them, within the memory that was planned. FailedPrecondition where there is no GPU or the binary
// was built without a CUDA toolkit.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "kernels/cuda/device_limits.h"
#include "orchestrator/commands/memory.h"
#include "rollout/engine.h"
#include "trainer/executor.h"
#include "trainer/model/weight_store.h"

namespace orrery::commands {

// run.device: auto becomes cuda where this binary and this machine have it, else cpu.
void ResolveDevice(configs::Experiment* experiment);

// The GPU that run.device: cuda means.
absl::StatusOr<kernels::DeviceLimits> GpuAtHand();

// What the experiment takes on such a GPU, and the size of its pages.
absl::StatusOr<plan::MemoryNeeds> NeedsOnGpu(const MemoryQuestion& question,
                                             const kernels::DeviceLimits& gpu);
int64_t GpuPageBytes();

struct GpuMemoryUse {
  int64_t peak_bytes = 0;   // of the whole GPU, at the times when it was asked
  double turn_seconds = 0;  // in which memory changed hands between rollout and training, so far
};

class Gpu {
 public:
  // experiment, store and plan are borrowed; the store's weights are copied to the device, and
  // checkpoints are written through it.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const configs::Experiment& experiment,
                                                   const plan::MemoryPlan& plan,
                                                   model::WeightStore* store);
  virtual ~Gpu() = default;

  // reference: frozen weights, or null. question: what the plan answered; where keys and values do
  // not lend it, the memory of the largest micro-batches is taken now, so that no step will miss
  // it. At most once.
  virtual absl::StatusOr<std::unique_ptr<trainer::Executor>> MakeExecutor(
      const trainer::ExecutorOptions& options, const model::WeightStore* reference,
      const MemoryQuestion& question) = 0;

  // codec: borrowed.
  virtual absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(const TextCodec* codec) = 0;

  virtual GpuMemoryUse MemoryUse() = 0;
};

}  // namespace orrery::commands

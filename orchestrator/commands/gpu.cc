#include "orchestrator/commands/gpu.h"

#include "orchestrator/base/status.h"

#ifndef ORRERY_HAVE_CUDA

namespace orrery::commands {

void ResolveDevice(configs::Experiment* experiment) {
  if (experiment->run.device == "auto") experiment->run.device = "cpu";
}

absl::StatusOr<kernels::DeviceLimits> GpuAtHand() {
  return Precondition(
      "run.device: cuda, but this binary was built without a CUDA toolkit: install one (nvcc) "
      "and run ./orrery build, or set run.device: cpu");
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const configs::Experiment&, const plan::MemoryPlan&,
                                               model::WeightStore*) {
  return GpuAtHand().status();
}

}  // namespace orrery::commands

#else

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_pages.h"
#include "orchestrator/commands/gpu_options.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::commands {
namespace {

using kernels::cuda::MemoryTurns;
using kernels::cuda::PagePool;
using model::DeviceWeights;
using rollout::cuda::CudaPassExecutor;
using rollout::cuda::CudaPassExecutorOptions;

class CudaGpu : public Gpu {
 public:
  CudaGpu(const configs::Experiment& experiment, const plan::MemoryPlan& plan,
          const kernels::DeviceLimits& device, model::WeightStore* store)
      : experiment_(experiment),
        plan_(plan),
        store_(*store),
        device_(device),
        pool_(kernels::cuda::MakeDevicePool()),
        turns_(plan.kv_lends ? std::make_shared<MemoryTurns>() : nullptr),
        weights_(DeviceWeights::CopyOf(*store)) {}

  absl::StatusOr<std::unique_ptr<trainer::Executor>> MakeExecutor(
      const trainer::ExecutorOptions& options, const model::WeightStore* reference,
      const MemoryQuestion& question) override {
    trainer::CudaExecutorOptions cuda;
    static_cast<trainer::ExecutorOptions&>(cuda) = options;
    cuda.numerics = NumericsOf(experiment_);
    cuda.optimizer_on_host = plan_.offloaded;
    cuda.pool = pool_;
    cuda.turns = turns_;
    if (turns_ == nullptr) cuda.reserve = TrainingNeeds(question, device_);
    std::unique_ptr<DeviceWeights> frozen;
    if (reference != nullptr) frozen = DeviceWeights::CopyOf(*reference);
    return trainer::CudaExecutor::Create(&store_, weights_, std::move(frozen), device_, cuda);
  }

  absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(const TextCodec* codec) override {
    CudaPassExecutorOptions options = EngineOptionsOf(experiment_, store_.spec());
    options.kv_blocks = plan_.kv_blocks;
    options.scheduler.swap_blocks = plan_.needs.kv.swap;
    options.pool = pool_;
    options.turns = turns_;
    auto executor =
        std::make_unique<CudaPassExecutor>(weights_, /*host=*/nullptr, device_, options);
    return std::make_unique<rollout::Engine>(std::move(executor), codec, options.scheduler);
  }

  // What was taken stays taken, from step to step: asked once a step, the peak is not missed.
  GpuMemoryUse MemoryUse() override {
    peak_bytes_ = std::max(peak_bytes_, kernels::QueryDeviceMemory().taken_bytes());
    return {peak_bytes_, turns_ == nullptr ? 0 : turns_->seconds()};
  }

 private:
  const configs::Experiment& experiment_;
  const plan::MemoryPlan& plan_;
  model::WeightStore& store_;
  const kernels::DeviceLimits device_;
  const std::shared_ptr<PagePool> pool_;      // keys and values, activations
  const std::shared_ptr<MemoryTurns> turns_;  // where the two share it
  const std::shared_ptr<DeviceWeights> weights_;
  int64_t peak_bytes_ = 0;
};

}  // namespace

absl::StatusOr<kernels::DeviceLimits> GpuAtHand() {
  const absl::StatusOr<kernels::DeviceLimits> device = kernels::QueryDeviceLimits(0);
  if (device.ok()) return *device;
  return Precondition("run.device: cuda: {}; or set run.device: cpu", StatusText(device.status()));
}

void ResolveDevice(configs::Experiment* experiment) {
  if (experiment->run.device != "auto") return;
  experiment->run.device = kernels::QueryDeviceLimits(0).ok() ? "cuda" : "cpu";
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const configs::Experiment& experiment,
                                               const plan::MemoryPlan& plan,
                                               model::WeightStore* store) {
  ASSIGN_OR_RETURN(const kernels::DeviceLimits device, GpuAtHand());
  return std::make_unique<CudaGpu>(experiment, plan, device, store);
}

}  // namespace orrery::commands

#endif  // ORRERY_HAVE_CUDA

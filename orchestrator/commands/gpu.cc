#include "orchestrator/commands/gpu.h"

#include "orchestrator/base/status.h"

#ifndef ORRERY_HAVE_CUDA

namespace orrery::commands {

void ResolveDevice(configs::Experiment* experiment) {
  if (experiment->run.device == "auto") experiment->run.device = "cpu";
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const configs::Experiment&, model::WeightStore*) {
  return Precondition(
      "run.device: cuda, but this binary was built without a CUDA toolkit: install one (nvcc) "
      "and run ./orrery build, or set run.device: cpu");
}

}  // namespace orrery::commands

#else

#include <algorithm>

#include "kernels/cuda/device.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "trainer/batch_bounds.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::commands {
namespace {

using model::DeviceWeights;
using rollout::cuda::CudaOps;
using rollout::cuda::CudaPassExecutor;
using rollout::cuda::CudaPassExecutorOptions;

// Left to the driver, graphs and libraries.
constexpr int64_t kReservedBytes = int64_t{2} << 30;

class CudaGpu : public Gpu {
 public:
  CudaGpu(const configs::Experiment& experiment, model::WeightStore* store)
      : experiment_(experiment), store_(*store) {}

  absl::Status Init() {
    RETURN_IF_ERROR(Query());
    const int64_t bytes = store_.layout().num_elements * kernels::SizeOf(store_.dtype());
    RETURN_IF_ERROR(CheckRoom(bytes, "the weights"));
    weights_ = DeviceWeights::CopyOf(store_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<trainer::Executor>> MakeExecutor(
      const trainer::ExecutorOptions& options, const model::WeightStore* reference) override {
    trainer::CudaExecutorOptions cuda;
    static_cast<trainer::ExecutorOptions&>(cuda) = options;
    cuda.numerics = numerics();
    RETURN_IF_ERROR(Query());
    trainer::CudaTrainingOptions training;
    training.recompute = options.recompute;
    training.numerics = numerics();
    activations_ = trainer::CudaTrainingOps::DryRun(
                       store_.spec(), store_.dtype(), device_, training,
                       trainer::LargestMicroBatches({experiment_.trainer.micro_batch_tokens,
                                                     /*sequence_tokens=*/2049}))
                       .total();
    const int64_t state = trainer::CudaExecutor::StateBytes(store_.layout());
    RETURN_IF_ERROR(CheckRoom(state + activations_ + (reference != nullptr ? WeightBytes() : 0),
                              "optimizer state, gradients and activations",
                              "lower trainer.micro_batch_tokens, or set trainer.recompute: block"));
    std::unique_ptr<DeviceWeights> frozen;
    if (reference != nullptr) frozen = DeviceWeights::CopyOf(*reference);
    return trainer::CudaExecutor::Create(&store_, weights_, std::move(frozen), device_, cuda);
  }

  absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(const rollout::EngineOptions& engine,
                                                              const TextCodec* codec) override {
    RETURN_IF_ERROR(Query());
    CudaPassExecutorOptions options;
    options.scheduler = engine.scheduler;
    options.scheduler.max_draws = std::max<int64_t>(experiment_.rollout.samples_per_prompt, 1024);
    options.kv_blocks = engine.kv_blocks;
    options.numerics = numerics();
    ASSIGN_OR_RETURN(options.kv_blocks, FittingBlocks(options));
    auto executor =
        std::make_unique<CudaPassExecutor>(weights_, /*host=*/nullptr, device_, options);
    return std::make_unique<rollout::Engine>(std::move(executor), codec, options.scheduler);
  }

 private:
  absl::Status Query() {
    const absl::StatusOr<kernels::DeviceLimits> device = kernels::QueryDeviceLimits(0);
    if (!device.ok()) {
      return Precondition("run.device: cuda: {}; or set run.device: cpu",
                          StatusText(device.status()));
    }
    device_ = *device;
    return absl::OkStatus();
  }

  int64_t WeightBytes() const { return weights_->bytes(); }

  absl::Status CheckRoom(int64_t bytes, const char* what,
                         const char* fix = "use a smaller model, or model.dtype: bfloat16") const {
    if (bytes + kReservedBytes <= device_.free_bytes) return absl::OkStatus();
    return Exhausted("the GPU has {} MB free; {} take {} MB, and {} MB are reserved: {}",
                     device_.free_bytes >> 20, what, bytes >> 20, kReservedBytes >> 20, fix);
  }

  kernels::cuda::Numerics numerics() const {
    return experiment_.run.numerics == "fast" ? kernels::cuda::Numerics::kFast
                                              : kernels::cuda::Numerics::kExact;
  }

  // How many blocks of keys and values fit beside everything else.
  absl::StatusOr<int64_t> FittingBlocks(const CudaPassExecutorOptions& options) const {
    const model::ModelSpec& spec = store_.spec();
    const int64_t buffers =
        CudaOps::BufferBytes(spec, store_.dtype(), device_, CudaPassExecutor::ToOpsLimits(options));
    const int64_t block = CudaOps::KvBytes(spec, store_.dtype(), 1);
    const int64_t room = device_.free_bytes - kReservedBytes - buffers - activations_;
    const int64_t fits = std::max<int64_t>(room, 0) / block;
    const bool fixed = experiment_.rollout.kv_tokens > 0;
    if (fits < 1 || (fixed && fits < options.kv_blocks)) {
      return Exhausted(
          "the GPU has {} MB free beside the weights; the engine's buffers take {} MB, the "
          "trainer's activations {} MB, {} MB are reserved, and the {} tokens of KV cache {} MB: "
          "lower rollout.kv_tokens, rollout.max_running, rollout.prefill_chunk_tokens or "
          "trainer.micro_batch_tokens",
          device_.free_bytes >> 20, buffers >> 20, activations_ >> 20, kReservedBytes >> 20,
          options.kv_blocks * kernels::kBlockTokens, options.kv_blocks * block >> 20);
    }
    return std::min(fits, options.kv_blocks);
  }

  const configs::Experiment& experiment_;
  model::WeightStore& store_;
  kernels::DeviceLimits device_;
  std::shared_ptr<DeviceWeights> weights_;
  int64_t activations_ = 0;  // of the trainer, once there is one
};

}  // namespace

void ResolveDevice(configs::Experiment* experiment) {
  if (experiment->run.device != "auto") return;
  experiment->run.device = kernels::QueryDeviceLimits(0).ok() ? "cuda" : "cpu";
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const configs::Experiment& experiment,
                                               model::WeightStore* store) {
  auto gpu = std::make_unique<CudaGpu>(experiment, store);
  RETURN_IF_ERROR(gpu->Init());
  return gpu;
}

}  // namespace orrery::commands

#endif  // ORRERY_HAVE_CUDA

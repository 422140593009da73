#include "orchestrator/commands/gpu_engine.h"

#include "orchestrator/base/status.h"

#ifndef ORRERY_HAVE_CUDA

namespace orrery::commands {

absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeGpuEngine(const configs::Experiment&,
                                                               const rollout::EngineOptions&,
                                                               const model::WeightStore*,
                                                               const TextCodec*) {
  return Precondition(
      "rollout.device: cuda, but this binary was built without a CUDA toolkit: install one (nvcc) "
      "and run ./orrery build, or set rollout.device: cpu");
}

}  // namespace orrery::commands

#else

#include <algorithm>

#include "kernels/cuda/device.h"
#include "rollout/cuda/cuda_pass_executor.h"

namespace orrery::commands {
namespace {

using rollout::cuda::CudaOps;
using rollout::cuda::CudaPassExecutor;
using rollout::cuda::CudaPassExecutorOptions;
using rollout::cuda::DeviceWeights;

// Left to the driver, graphs and libraries.
constexpr int64_t kReservedBytes = int64_t{2} << 30;

// How many blocks of keys and values fit beside everything else.
absl::StatusOr<int64_t> FittingBlocks(const configs::Experiment& e, const model::WeightStore& store,
                                      const kernels::DeviceLimits& device,
                                      const CudaPassExecutorOptions& options) {
  const model::ModelSpec& spec = store.spec();
  const int64_t weights = store.layout().num_elements * kernels::SizeOf(store.dtype());
  const int64_t buffers =
      CudaOps::BufferBytes(spec, store.dtype(), device, CudaPassExecutor::ToOpsLimits(options));
  const int64_t block = CudaOps::KvBytes(spec, store.dtype(), 1);
  const int64_t room = device.free_bytes - kReservedBytes - weights - buffers;
  const int64_t fits = std::max<int64_t>(room, 0) / block;
  const bool fixed = e.rollout.kv_tokens > 0;
  if (fits < 1 || (fixed && fits < options.kv_blocks)) {
    return Exhausted(
        "the GPU has {} MB free; weights take {} MB, buffers {} MB, {} MB are reserved, and the "
        "{} tokens of KV cache {} MB: lower rollout.kv_tokens, rollout.max_running or "
        "rollout.prefill_chunk_tokens",
        device.free_bytes >> 20, weights >> 20, buffers >> 20, kReservedBytes >> 20,
        options.kv_blocks * kernels::kBlockTokens, options.kv_blocks * block >> 20);
  }
  return std::min(fits, options.kv_blocks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeGpuEngine(const configs::Experiment& e,
                                                               const rollout::EngineOptions& engine,
                                                               const model::WeightStore* store,
                                                               const TextCodec* codec) {
  const absl::StatusOr<kernels::DeviceLimits> device = kernels::QueryDeviceLimits(0);
  if (!device.ok()) {
    return Precondition("rollout.device: cuda: {}; or set rollout.device: cpu",
                        StatusText(device.status()));
  }
  CudaPassExecutorOptions options;
  options.scheduler = engine.scheduler;
  options.scheduler.max_draws = std::max<int64_t>(e.rollout.samples_per_prompt, 1024);
  options.kv_blocks = engine.kv_blocks;
  options.numerics = e.rollout.numerics == "fast" ? rollout::cuda::Numerics::kFast
                                                  : rollout::cuda::Numerics::kExact;
  ASSIGN_OR_RETURN(options.kv_blocks, FittingBlocks(e, *store, *device, options));
  auto weights = std::make_unique<DeviceWeights>(store->spec(), store->dtype());
  auto executor = std::make_unique<CudaPassExecutor>(std::move(weights), store, *device, options);
  RETURN_IF_ERROR(executor->TakeWeights(store->version()));
  return std::make_unique<rollout::Engine>(std::move(executor), codec, options.scheduler);
}

}  // namespace orrery::commands

#endif  // ORRERY_HAVE_CUDA

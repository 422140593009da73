#include "rollout/cuda/bench_memory.h"

#include "rollout/cuda/cuda_executor.h"

namespace orrery::rollout::cuda {

using kernels::cuda::PagePool;

plan::MemoryNeeds NeedsOfEngine(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                                const OpsLimits& limits) {
  const kernels::DType dtype = kernels::DType::kBFloat16;
  plan::MemoryNeeds needs;
  needs.gpu = plan::TakenUnasked(device.memory_bytes - device.free_bytes);
  needs.gpu.push_back({"weights", PagePool::RoundUp(model::WeightLayout(spec).num_elements *
                                                    kernels::SizeOf(dtype))});
  needs.gpu.push_back(
      {"engine: buffers of a step", CudaExecutor::BufferBytes(spec, dtype, device, limits)});
  needs.gpu.push_back({"engine: CUDA graphs, at most", CudaExecutor::kMostGraphBytes});
  needs.kv.block_bytes = CudaOps::KvBytes(spec, dtype, 1, limits.kv_format);
  needs.kv.block_tokens = kernels::kBlockTokens;
  return needs;
}

plan::MemoryLimits LimitsOf(const kernels::DeviceLimits& device) {
  return plan::LimitsOfGpu(device.architecture, device.memory_bytes, PagePool::kPageBytes);
}

}  // namespace orrery::rollout::cuda

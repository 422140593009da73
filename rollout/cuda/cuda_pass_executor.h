// The engine's passes on a GPU, two in flight.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/memory_turns.h"
#include "rollout/cuda/cuda_executor.h"
#include "rollout/pass_executor.h"

namespace orrery::rollout::cuda {

struct CudaPassExecutorOptions {
  SchedulerLimits scheduler;
  int64_t kv_blocks = 0;
  int64_t top_logprobs = 0;  // the most that a request may ask for
  KvFormat kv_format = KvFormat::kModel;
  Numerics numerics = Numerics::kExact;
  std::shared_ptr<kernels::cuda::PagePool> pool;  // of keys and values; null: one of their own
  // Where keys and values lend their memory to the trainer: between requests, their contents lost.
  std::shared_ptr<kernels::cuda::MemoryTurns> turns;
};

class CudaPassExecutor : public PassExecutor {
 public:
  // host: borrowed; TakeWeights copies from it. Null: the weights are changed in place by their
  // other owner, the trainer, and TakeWeights only looks at their version.
  CudaPassExecutor(std::shared_ptr<DeviceWeights> weights, const model::WeightStore* host,
                   const kernels::DeviceLimits& device, const CudaPassExecutorOptions& options);
  ~CudaPassExecutor() override;

  // Extents of a step under these options.
  static OpsLimits ToOpsLimits(const CudaPassExecutorOptions& options);

  const model::ModelSpec& spec() const override { return weights_->spec(); }
  BlockPool* pool() override { return &pool_; }
  PolicyVersion version() const override { return weights_->version(); }
  absl::Status TakeWeights(PolicyVersion version) override;
  void Sleep() override;
  void Wake() override;
  absl::Status Admit(const GenerationRequest& request) const override;
  void Swap(std::span<const KvSwap> swaps) override;
  int64_t BlockBytes() const override;
  int depth() const override { return CudaExecutor::kMaxInFlight; }
  void Launch(std::span<const Work> pass, std::span<const Draw> draws,
              const Copies& copies) override;
  PassResult Collect() override;

 private:
  void AddRows(const Work& work, Step* step) const;
  void AddSample(const Draw& draw, int32_t row, Step* step);
  void AddIds(const Draw& draw, Step* step, Step::Sample* sample);

  std::unique_lock<std::mutex> TakeTurn();

  std::shared_ptr<DeviceWeights> weights_;
  const model::WeightStore* host_;
  BlockPool pool_;
  const std::shared_ptr<kernels::cuda::MemoryTurns> turns_;
  const int64_t top_logprobs_;
  const KvFormat kv_format_;
  CudaExecutor executor_;
};

}  // namespace orrery::rollout::cuda

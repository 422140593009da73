// The trainer's executor on one GPU, over weights that the rollout engine reads at the same
// address: the optimizer writes them there, so a sync is a version number. The gradient is a flat
// float32 buffer on the device; DeviceOptimizer has the rest of the state.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/memory_turns.h"
#include "trainer/cuda/cuda_training_ops.h"
#include "trainer/cuda/device_optimizer.h"
#include "trainer/executor.h"

namespace orrery::trainer {

struct CudaExecutorOptions : ExecutorOptions {
  kernels::cuda::Numerics numerics = kernels::cuda::Numerics::kExact;
  int64_t logits_bytes = CudaTrainingOptions{}.logits_bytes;
  bool optimizer_on_host = false;                 // master weights and moments
  std::shared_ptr<kernels::cuda::PagePool> pool;  // of activations; null: one of its own
  // Where the rollout lends the memory of activations.
  std::shared_ptr<kernels::cuda::MemoryTurns> turns;
  // Memory of micro-batches to take at once, rather than as they come: by a dry run of the largest
  // (CudaTrainingOps). No use with turns.
  std::optional<TrainingBytes> reserve;
};

class CudaExecutor : public Executor {
 public:
  // host: the weights as loaded, committed; borrowed: checkpoints are written through it (null:
  // none will be). weights: a copy of them on the device, at the same version; shared with the
  // engine. reference: frozen
  // weights, or null. NotFound where cuBLASLt is missing.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(
      model::WeightStore* host, std::shared_ptr<model::DeviceWeights> weights,
      std::unique_ptr<model::DeviceWeights> reference, const kernels::DeviceLimits& device,
      const CudaExecutorOptions& options);
  ~CudaExecutor() override;

  // Device memory of master weights, moments and gradient, and of what steps read of the layout.
  static int64_t StateBytes(const model::WeightLayout& layout) {
    return 4 * layout.num_elements + DeviceOptimizer::StateBytes(layout) +
           DeviceOptimizer::TableBytes(layout);
  }

  const model::ModelSpec& spec() const override { return weights_->spec(); }
  kernels::DType dtype() const override { return weights_->dtype(); }
  bool has_reference() const override { return reference_ != nullptr; }
  PolicyVersion version() const override { return weights_->version(); }
  int64_t optimizer_steps() const override { return steps_; }

  absl::Status Score(WeightsOf weights, std::span<const MicroBatch> micros, float temperature,
                     const ScoreFn& score) override;
  absl::Status ForwardBackward(std::span<const MicroBatch> micros, float temperature,
                               const LossFn& loss) override;
  double GradNorm() override;
  double Step(double grad_norm, double learning_rate) override;
  std::vector<float> Gradient() const override;
  absl::Status Save(const std::string& folder) override;
  absl::Status Load(const std::string& folder) override;

  // Device memory of micro-batches, at its highest so far.
  TrainingBytes activation_bytes() const { return ops_->bytes(); }

 private:
  CudaExecutor(model::WeightStore* host, std::shared_ptr<model::DeviceWeights> weights,
               std::unique_ptr<model::DeviceWeights> reference, const CudaExecutorOptions& options);

  absl::Status RunMicroBatch(const MicroBatch& micro, size_t index, float temperature,
                             const LossFn& loss);
  // The memory of activations, for as long as the lock lives.
  std::unique_lock<std::mutex> TakeTurn();

  model::WeightStore* host_;
  const std::shared_ptr<model::DeviceWeights> weights_;
  const std::unique_ptr<model::DeviceWeights> reference_;
  const CudaExecutorOptions options_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaTrainingOps> ops_;
  kernels::cuda::DeviceBuffer grads_;
  std::unique_ptr<DeviceOptimizer> optimizer_;
  int64_t steps_ = 0;
};

}  // namespace orrery::trainer

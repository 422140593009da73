// The trainer's executor on the CPU, over a WeightStore that the rollout engine reads too.
//
// Small models train micro-batches side by side on the threads, each into a gradient buffer of its
// own; large ones run one micro-batch at a time on all threads. Either way gradients are summed in
// micro-batch order, so a step is bitwise the same with any number of threads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "trainer/cpu/optimizer.h"
#include "trainer/cpu/training_ops.h"
#include "trainer/executor.h"
#include "trainer/policy_trainer.h"

namespace orrery::trainer {

class CpuExecutor : public Executor {
 public:
  // store: loaded and committed; borrowed. reference: frozen weights, or null.
  CpuExecutor(model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
              const ExecutorOptions& options);

  const model::ModelSpec& spec() const override { return store_.spec(); }
  kernels::DType dtype() const override { return store_.dtype(); }
  bool has_reference() const override { return reference_ != nullptr; }
  PolicyVersion version() const override { return store_.version(); }
  int64_t optimizer_steps() const override { return optimizer_.steps(); }

  absl::Status Score(WeightsOf weights, std::span<const MicroBatch> micros, float temperature,
                     const ScoreFn& score) override;
  absl::Status ForwardBackward(std::span<const MicroBatch> micros, float temperature,
                               const LossFn& loss) override;
  double GradNorm() override { return optimizer_.GradNorm(grads_); }
  double Step(double grad_norm, double learning_rate) override;
  std::vector<float> Gradient() const override { return grads_; }
  absl::Status Save(const std::string& folder) override;
  absl::Status Load(const std::string& folder) override;

 private:
  absl::Status RunMicroBatch(const MicroBatch& micro, size_t index, float inverse_temperature,
                             const LossFn& loss, float* grads, TrainingOps* ops);
  void SumGradients(const std::vector<std::vector<float>>& parts);
  bool small_model() const;
  std::unique_ptr<TrainingOps> TakeOps();
  void GiveBack(std::unique_ptr<TrainingOps> ops);
  void CommitMaster();

  model::WeightStore& store_;
  const std::unique_ptr<model::WeightStore> reference_;
  const bool recompute_;
  const kernels::RopeTable rope_;
  AdamW optimizer_;
  std::vector<float> grads_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TrainingOps>> idle_ops_;  // guarded by mutex_
};

// A trainer over a CpuExecutor.
absl::StatusOr<std::unique_ptr<PolicyTrainer>> MakeCpuTrainer(
    model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
    const PolicyTrainerOptions& options);

}  // namespace orrery::trainer

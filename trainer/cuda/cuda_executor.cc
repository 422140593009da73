#include "trainer/cuda/cuda_executor.h"

#include <cmath>

#include "kernels/cuda/staged_copy.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"

namespace orrery::trainer {

using kernels::cuda::MemoryTurns;
using model::DeviceWeights;

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(
    model::WeightStore* host, std::shared_ptr<DeviceWeights> weights,
    std::unique_ptr<DeviceWeights> reference, const kernels::DeviceLimits& device,
    const CudaExecutorOptions& options) {
  CHECK(host == nullptr || host->version() == weights->version());
  std::unique_ptr<CudaExecutor> executor(
      new CudaExecutor(host, std::move(weights), std::move(reference), options));
  CudaTrainingOptions training;
  training.numerics = options.numerics;
  training.recompute = options.recompute;
  training.logits_bytes = options.logits_bytes;
  ASSIGN_OR_RETURN(executor->ops_, CudaTrainingOps::Create(executor->spec(), device, training,
                                                           executor->stream_, options.pool));
  if (options.reserve) executor->ops_->Reserve(*options.reserve);
  if (options.turns != nullptr) {
    CudaTrainingOps* ops = executor->ops_.get();
    options.turns->Register(MemoryTurns::kTraining, {[ops] { ops->Release(); }, nullptr});
  }
  return executor;
}

CudaExecutor::CudaExecutor(model::WeightStore* host, std::shared_ptr<DeviceWeights> weights,
                           std::unique_ptr<DeviceWeights> reference,
                           const CudaExecutorOptions& options)
    : host_(host),
      weights_(std::move(weights)),
      reference_(std::move(reference)),
      options_(options) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  grads_ = kernels::cuda::DeviceBuffer(4 * weights_->layout().num_elements);
  CUDA_CHECK(cudaMemset(grads_.data(), 0, static_cast<size_t>(grads_.bytes())));
  optimizer_ = std::make_unique<DeviceOptimizer>(*weights_, options.optimizer_on_host, stream_);
}

CudaExecutor::~CudaExecutor() {
  if (options_.turns != nullptr) options_.turns->Register(MemoryTurns::kTraining, {});
  cudaStreamSynchronize(stream_);
  ops_.reset();
  optimizer_.reset();
  cudaStreamDestroy(stream_);
}

std::unique_lock<std::mutex> CudaExecutor::TakeTurn() {
  if (options_.turns == nullptr) return {};
  return options_.turns->Take(MemoryTurns::kTraining);
}

absl::Status CudaExecutor::Score(WeightsOf which, std::span<const MicroBatch> micros,
                                 float temperature, const ScoreFn& score) {
  CHECK(which == WeightsOf::kPolicy || has_reference());
  const std::unique_lock<std::mutex> turn = TakeTurn();
  const DeviceWeights& weights = which == WeightsOf::kPolicy ? *weights_ : *reference_;
  for (size_t m = 0; m < micros.size(); ++m) {
    ops_->Begin(micros[m], weights, /*grads=*/nullptr);
    const model::Value hidden =
        model::Forward(weights.spec(), weights.layout(), ops_->batch(), *ops_);
    std::vector<float> logps(micros[m].targets.size()), entropies(logps.size());
    const int64_t bad = ops_->Logprobs(hidden, temperature, logps, entropies);
    RETURN_IF_ERROR(score(m, {logps, entropies, bad, ops_->differing_routing()}));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::RunMicroBatch(const MicroBatch& micro, size_t index, float temperature,
                                         const LossFn& loss) {
  ops_->Begin(micro, *weights_, grads_.as<float>());
  const model::Value hidden =
      model::Forward(weights_->spec(), weights_->layout(), ops_->batch(), *ops_);
  const size_t n = micro.targets.size();
  std::vector<float> logps(n), entropies(n), dlogps(n), dentropies(n);
  const int64_t bad = ops_->Logprobs(hidden, temperature, logps, entropies);
  RETURN_IF_ERROR(
      loss(index, {logps, entropies, bad, ops_->differing_routing()}, dlogps, dentropies));
  ops_->Backward(dlogps, dentropies);
  return absl::OkStatus();
}

absl::Status CudaExecutor::ForwardBackward(std::span<const MicroBatch> micros, float temperature,
                                           const LossFn& loss) {
  const std::unique_lock<std::mutex> turn = TakeTurn();
  CUDA_CHECK(cudaMemsetAsync(grads_.data(), 0, static_cast<size_t>(grads_.bytes()), stream_));
  for (size_t m = 0; m < micros.size(); ++m) {
    RETURN_IF_ERROR(RunMicroBatch(micros[m], m, temperature, loss));
  }
  return absl::OkStatus();
}

double CudaExecutor::GradNorm() { return optimizer_->GradNorm(grads_.as<float>()); }

double CudaExecutor::Step(double grad_norm, double learning_rate) {
  CHECK(std::isfinite(grad_norm));
  ++steps_;
  const AdamWOptions& o = options_.optimizer;
  kernels::cuda::AdamWHyperparameters h;
  h.beta1 = static_cast<float>(o.beta1);
  h.beta2 = static_cast<float>(o.beta2);
  h.epsilon = static_cast<float>(o.epsilon);
  h.weight_decay = static_cast<float>(o.weight_decay);
  h.learning_rate = static_cast<float>(learning_rate);
  h.gradient_scale = o.ClipScale(grad_norm);
  h.step = steps_;
  optimizer_->Step(h, grads_.as<float>(), weights_.get());
  Stopwatch stopwatch;
  weights_->Commit(static_cast<PolicyVersion>(steps_));
  return stopwatch.Lap();
}

std::vector<float> CudaExecutor::Gradient() const {
  std::vector<float> values(static_cast<size_t>(grads_.bytes() / 4));
  kernels::cuda::CopyToHost(values.data(), grads_.data(), grads_.bytes(), stream_);
  return values;
}

absl::Status CudaExecutor::Save(const std::string& folder) {
  CHECK(host_ != nullptr);
  weights_->CopyTo(host_, stream_);
  RETURN_IF_ERROR(host_->SaveCheckpoint(folder));
  return optimizer_->Save(folder, steps_);
}

absl::Status CudaExecutor::Load(const std::string& folder) {
  ASSIGN_OR_RETURN(steps_, optimizer_->Load(folder, weights_.get()));
  weights_->Commit(static_cast<PolicyVersion>(steps_));
  return absl::OkStatus();
}

}  // namespace orrery::trainer

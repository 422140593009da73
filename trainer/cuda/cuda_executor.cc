#include "trainer/cuda/cuda_executor.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "trainer/optimizer_file.h"

namespace orrery::trainer {

using kernels::cuda::AdamWPiece;
using kernels::cuda::DeviceBuffer;
using model::DeviceWeights;

namespace {

std::vector<AdamWPiece> CutIntoPieces(const model::WeightLayout& layout) {
  std::vector<AdamWPiece> pieces;
  for (const model::Param& p : layout.params) {
    for (int64_t at = 0; at < p.num_elements(); at += kernels::cuda::kAdamWPiece) {
      const int64_t count = std::min(kernels::cuda::kAdamWPiece, p.num_elements() - at);
      pieces.push_back({p.offset + at, static_cast<int32_t>(count), p.decay});
    }
  }
  return pieces;
}

}  // namespace

int64_t CudaExecutor::StateBytes(const model::WeightLayout& layout) {
  const auto pieces = static_cast<int64_t>(CutIntoPieces(layout).size());
  return 4 * 4 * layout.num_elements + pieces * static_cast<int64_t>(sizeof(AdamWPiece)) +
         8 * (pieces + 1);
}

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
  ASSIGN_OR_RETURN(executor->ops_,
                   CudaTrainingOps::Create(executor->spec(), device, training, executor->stream_));
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
  const int64_t n = weights_->layout().num_elements;
  for (DeviceBuffer* buffer : {&grads_, &master_, &moment1_, &moment2_}) {
    *buffer = DeviceBuffer(4 * n);
    CUDA_CHECK(cudaMemset(buffer->data(), 0, static_cast<size_t>(buffer->bytes())));
  }
  kernels::cuda::WidenWeights(weights_->data(), n, weights_->dtype(), master_.as<float>(), stream_);
  const std::vector<AdamWPiece> pieces = CutIntoPieces(weights_->layout());
  num_pieces_ = static_cast<int64_t>(pieces.size());
  pieces_ = DeviceBuffer(num_pieces_ * static_cast<int64_t>(sizeof(AdamWPiece)));
  CUDA_CHECK(cudaMemcpy(pieces_.data(), pieces.data(), static_cast<size_t>(pieces_.bytes()),
                        cudaMemcpyHostToDevice));
  sums_ = DeviceBuffer((num_pieces_ + 1) * 8);
  norm_ = kernels::cuda::PinnedBuffer(8);
  CUDA_CHECK(cudaDeviceSynchronize());
}

CudaExecutor::~CudaExecutor() {
  cudaStreamSynchronize(stream_);
  ops_.reset();
  cudaStreamDestroy(stream_);
}

std::vector<float> CudaExecutor::Download(const DeviceBuffer& buffer) const {
  std::vector<float> values(static_cast<size_t>(buffer.bytes() / 4));
  CUDA_CHECK(cudaMemcpyAsync(values.data(), buffer.data(), static_cast<size_t>(buffer.bytes()),
                             cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return values;
}

void CudaExecutor::Upload(std::span<const float> values, const DeviceBuffer& buffer) {
  CHECK_EQ(static_cast<int64_t>(values.size_bytes()), buffer.bytes());
  CUDA_CHECK(cudaMemcpyAsync(buffer.data(), values.data(), values.size_bytes(),
                             cudaMemcpyHostToDevice, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

absl::Status CudaExecutor::Score(WeightsOf which, std::span<const MicroBatch> micros,
                                 float temperature, const ScoreFn& score) {
  CHECK(which == WeightsOf::kPolicy || has_reference());
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
  CUDA_CHECK(cudaMemsetAsync(grads_.data(), 0, static_cast<size_t>(grads_.bytes()), stream_));
  for (size_t m = 0; m < micros.size(); ++m) {
    RETURN_IF_ERROR(RunMicroBatch(micros[m], m, temperature, loss));
  }
  return absl::OkStatus();
}

double CudaExecutor::GradNorm() {
  double* norm = sums_.as<double>() + num_pieces_;
  kernels::cuda::GradNorm(grads_.as<float>(), pieces_.as<AdamWPiece>(), num_pieces_,
                          sums_.as<double>(), norm, stream_);
  CUDA_CHECK(cudaMemcpyAsync(norm_.data(), norm, 8, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return *norm_.as<double>();
}

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
  kernels::cuda::AdamWStep(h, pieces_.as<AdamWPiece>(), num_pieces_, grads_.as<float>(),
                           master_.as<float>(), moment1_.as<float>(), moment2_.as<float>(),
                           weights_->data(), weights_->dtype(), stream_);
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  Stopwatch stopwatch;
  weights_->Commit(static_cast<PolicyVersion>(steps_));
  return stopwatch.Lap();
}

std::vector<float> CudaExecutor::Gradient() const { return Download(grads_); }

absl::Status CudaExecutor::Save(const std::string& folder) {
  CHECK(host_ != nullptr);
  weights_->CopyTo(host_, stream_);
  RETURN_IF_ERROR(host_->SaveCheckpoint(folder));
  return SaveOptimizer(folder, Download(master_), Download(moment1_), Download(moment2_), steps_);
}

absl::Status CudaExecutor::Load(const std::string& folder) {
  const auto n = static_cast<size_t>(weights_->layout().num_elements);
  ASSIGN_OR_RETURN(const OptimizerState state, LoadOptimizer(folder, n));
  Upload(state.master, master_);
  Upload(state.moment1, moment1_);
  Upload(state.moment2, moment2_);
  steps_ = state.steps;
  kernels::cuda::RoundWeights(master_.as<float>(), static_cast<int64_t>(n), weights_->data(),
                              weights_->dtype(), stream_);
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  weights_->Commit(static_cast<PolicyVersion>(steps_));
  return absl::OkStatus();
}

}  // namespace orrery::trainer

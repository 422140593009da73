#include "trainer/cpu/cpu_executor.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "trainer/cpu/training_bytes.h"

namespace orrery::trainer {
namespace {

// As the sampler: greedy responses carry log-probs at temperature 1.
float InverseTemperature(float temperature) { return temperature > 0 ? 1 / temperature : 1; }

absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

CpuExecutor::CpuExecutor(model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
                         const ExecutorOptions& options)
    : store_(*store),
      reference_(std::move(reference)),
      recompute_(options.recompute),
      rope_(store->spec().rope_inv_freq, store->spec().max_positions),
      optimizer_(*store, options.optimizer),
      grads_(static_cast<size_t>(store->layout().num_elements)) {}

bool CpuExecutor::small_model() const {
  return RunsMicroBatchesSideBySide(static_cast<int64_t>(grads_.size()));
}

std::unique_ptr<TrainingOps> CpuExecutor::TakeOps() {
  std::lock_guard lock(mutex_);
  if (idle_ops_.empty()) return std::make_unique<TrainingOps>(&store_, &rope_, recompute_);
  std::unique_ptr<TrainingOps> ops = std::move(idle_ops_.back());
  idle_ops_.pop_back();
  return ops;
}

void CpuExecutor::GiveBack(std::unique_ptr<TrainingOps> ops) {
  std::lock_guard lock(mutex_);
  idle_ops_.push_back(std::move(ops));
}

absl::Status CpuExecutor::Score(WeightsOf which, std::span<const MicroBatch> micros,
                                float temperature, const ScoreFn& score) {
  CHECK(which == WeightsOf::kPolicy || has_reference());
  const model::WeightStore& weights = which == WeightsOf::kPolicy ? store_ : *reference_;
  std::vector<absl::Status> statuses(micros.size());
  const auto run = [&](int64_t m) {
    const MicroBatch& micro = micros[m];
    const std::vector<int32_t> replay = micro.ReplayExperts();
    model::Batch packed = micro.batch();
    packed.replay_experts = replay;
    TrainingOps ops(&weights, &rope_, /*recompute=*/false);
    ops.Begin(packed, micro.num_blocks, /*grads=*/nullptr);
    const model::Value hidden = model::Forward(weights.spec(), weights.layout(), packed, ops);
    std::vector<float> logps(micro.targets.size()), entropies(micro.targets.size());
    const int64_t bad =
        ops.Logprobs(hidden, micro.targets, InverseTemperature(temperature), logps, entropies);
    statuses[m] = score(static_cast<size_t>(m), {logps, entropies, bad, ops.differing_routing()});
  };
  if (small_model()) {
    kernels::ParallelFor(static_cast<int64_t>(micros.size()), run);
  } else {
    for (size_t m = 0; m < micros.size(); ++m) run(static_cast<int64_t>(m));
  }
  return FirstError(statuses);
}

absl::Status CpuExecutor::RunMicroBatch(const MicroBatch& micro, size_t index,
                                        float inverse_temperature, const LossFn& loss, float* grads,
                                        TrainingOps* ops) {
  const std::vector<int32_t> replay = micro.ReplayExperts();
  model::Batch packed = micro.batch();
  packed.replay_experts = replay;
  ops->Begin(packed, micro.num_blocks, grads);
  const model::Value hidden = model::Forward(store_.spec(), store_.layout(), packed, *ops);
  const size_t n = micro.targets.size();
  std::vector<float> logps(n), entropies(n), dlogps(n), dentropies(n);
  const int64_t bad = ops->Logprobs(hidden, micro.targets, inverse_temperature, logps, entropies);
  RETURN_IF_ERROR(
      loss(index, {logps, entropies, bad, ops->differing_routing()}, dlogps, dentropies));
  ops->Backward(dlogps, dentropies);
  return absl::OkStatus();
}

absl::Status CpuExecutor::ForwardBackward(std::span<const MicroBatch> micros, float temperature,
                                          const LossFn& loss) {
  const size_t n = micros.size();
  std::vector<absl::Status> statuses(n);
  std::fill(grads_.begin(), grads_.end(), 0.0f);
  const auto run = [&](size_t i, float* grads) {
    std::unique_ptr<TrainingOps> ops = TakeOps();
    statuses[i] =
        RunMicroBatch(micros[i], i, InverseTemperature(temperature), loss, grads, ops.get());
    GiveBack(std::move(ops));
  };
  if (small_model() && n > 1) {
    // However many are in flight, they are added in their order.
    const auto at_once = static_cast<size_t>(MicroBatchesInFlight(kernels::NumThreads()));
    std::vector<std::vector<float>> parts(std::min(n, at_once));
    for (size_t first = 0; first < n; first += parts.size()) {
      parts.resize(std::min(n - first, parts.size()));
      kernels::ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
        parts[i].assign(grads_.size(), 0.0f);
        run(first + static_cast<size_t>(i), parts[i].data());
      });
      SumGradients(parts);
    }
  } else {
    for (size_t i = 0; i < n; ++i) run(i, grads_.data());
  }
  return FirstError(statuses);
}

void CpuExecutor::SumGradients(const std::vector<std::vector<float>>& parts) {
  constexpr int64_t kChunk = 1 << 14;
  const int64_t size = static_cast<int64_t>(grads_.size());
  kernels::ParallelFor((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(size, (chunk + 1) * kChunk);
    for (const std::vector<float>& part : parts) {
      for (int64_t i = chunk * kChunk; i < end; ++i) grads_[i] += part[i];
    }
  });
}

void CpuExecutor::CommitMaster() {
  store_.BeginUpdate();
  store_.Assign(optimizer_.master());
  store_.Commit(static_cast<PolicyVersion>(optimizer_.steps()));
}

double CpuExecutor::Step(double grad_norm, double learning_rate) {
  optimizer_.Step(grads_, grad_norm, learning_rate);
  Stopwatch stopwatch;
  CommitMaster();
  return stopwatch.Lap();
}

absl::Status CpuExecutor::Save(const std::string& folder) {
  RETURN_IF_ERROR(store_.SaveCheckpoint(folder));
  return optimizer_.Save(folder);
}

absl::Status CpuExecutor::Load(const std::string& folder) {
  RETURN_IF_ERROR(optimizer_.Load(folder));
  CommitMaster();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PolicyTrainer>> MakeCpuTrainer(
    model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
    const PolicyTrainerOptions& options) {
  return PolicyTrainer::Create(std::make_unique<CpuExecutor>(store, std::move(reference), options),
                               options);
}

}  // namespace orrery::trainer

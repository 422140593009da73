#include "trainer/cuda/train_bench.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fill.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/stopwatch.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using kernels::TensorView;
using kernels::cuda::DeviceBuffer;
using model::DeviceWeights;

absl::StatusOr<double> MeasureCeiling() {
  constexpr int64_t kN = 8192, kRuns = 20;
  ASSIGN_OR_RETURN(const auto library, kernels::cuda::LinearLibrary::Create());
  const DeviceBuffer a(kN * kN * 2), b(kN * kN * 2), c(kN * kN * 2);
  for (const DeviceBuffer* buffer : {&a, &b}) {
    kernels::cuda::FillUniform(buffer->data(), DType::kBFloat16, kN * kN, -1, 1, 1, nullptr);
  }
  const auto view = [](const DeviceBuffer& buffer) {
    return TensorView{buffer.data(), DType::kBFloat16, kN, kN, kN};
  };
  const auto run = [&] { CHECK(library->Run(view(a), view(b), {}, view(c), nullptr)); };
  for (int i = 0; i < 5; ++i) run();
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  Stopwatch stopwatch;
  for (int i = 0; i < kRuns; ++i) run();
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return 2.0 * kN * kN * kN * kRuns / stopwatch.Lap();
}

// Parameters that a token is multiplied with.
double ActiveParameters(const model::ModelSpec& spec, const model::WeightLayout& layout) {
  double active = 0;
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const model::Param& p = layout.params[i];
    const bool lookup =
        static_cast<model::ParamId>(i) == layout.embedding && layout.head != layout.embedding;
    if (p.is_vector() || lookup) continue;
    const bool experts = p.num_matrices > 1;
    const double share = experts ? static_cast<double>(spec.experts_per_token) /
                                       static_cast<double>(spec.num_experts)
                                 : 1;
    active += static_cast<double>(p.num_elements()) * share;
  }
  return active;
}

TrainingSequence RandomSequence(const model::ModelSpec& spec, int64_t tokens, uint64_t seed) {
  TrainingSequence s;
  for (int64_t t = 0; t < tokens; ++t) {
    s.token_ids.push_back(static_cast<int32_t>(HashSeed({seed, static_cast<uint64_t>(t)}) %
                                               static_cast<uint64_t>(spec.vocab_size)));
  }
  s.loss_mask.assign(static_cast<size_t>(tokens), 1);
  s.loss_mask[0] = 0;
  return s;
}

int64_t SequencesOf(const TrainBenchOptions& options) {  // of a micro-batch
  return std::max<int64_t>(1, options.micro_batch_tokens / options.sequence_tokens);
}

std::vector<MicroBatch> MicroBatchesOf(const model::ModelSpec& spec,
                                       const TrainBenchOptions& options) {
  const int64_t sequences = SequencesOf(options);
  std::vector<TrainingSequence> all;
  for (int64_t i = 0; i < sequences * options.micro_batches; ++i) {
    // One row fewer than tokens is computed of each sequence.
    all.push_back(RandomSequence(spec, options.sequence_tokens + 1,
                                 HashSeed({options.seed, 3, static_cast<uint64_t>(i)})));
  }
  return Pack(all, sequences * options.sequence_tokens, /*share_prefix=*/false);
}

plan::MemoryPlan PlanFor(const model::ModelSpec& spec, const TrainBenchOptions& options,
                         const kernels::DeviceLimits& device,
                         const std::vector<MicroBatch>& micros) {
  CudaTrainingOptions dry;
  dry.numerics = options.numerics;
  dry.recompute = options.recompute;
  const model::WeightLayout layout(spec);
  const TrainingBytes bytes = CudaTrainingOps::DryRun(spec, DType::kBFloat16, device, dry, micros);
  plan::MemoryPlan plan;
  plan.limits = plan::LimitsOfGpu(device.architecture, device.memory_bytes,
                                  kernels::cuda::PagePool::kPageBytes);
  plan.needs.gpu = plan::TakenUnasked(device.memory_bytes - device.free_bytes);
  plan.needs.training = {
      {"weights",
       kernels::cuda::PagePool::RoundUp(layout.num_elements * kernels::SizeOf(DType::kBFloat16))},
      {"gradients, master weights and moments", CudaExecutor::StateBytes(layout)},
      {"activations and logits of a micro-batch", bytes.activations + bytes.block + bytes.logits},
      {"inputs, workspaces, libraries", bytes.workspaces() + bytes.inputs + bytes.fixed}};
  return plan;
}

// Cross-entropy, the mean over a step's tokens.
absl::Status Loss(double num_targets, const TokenScores& scores, std::span<float> dlogprobs) {
  if (scores.bad >= 0) return Failed("logits of target {} are not finite", scores.bad);
  std::fill(dlogprobs.begin(), dlogprobs.end(), static_cast<float>(-1 / num_targets));
  return absl::OkStatus();
}

}  // namespace

plan::MemoryPlan PlanTrainBench(const model::ModelSpec& spec, const TrainBenchOptions& options,
                                const kernels::DeviceLimits& device) {
  return PlanFor(spec, options, device, MicroBatchesOf(spec, options));
}

absl::Status CheckTrainBench(const plan::MemoryPlan& plan, const TrainBenchOptions& options) {
  return plan::CheckFits(plan, options.recompute
                                   ? "lower --layers or --micro-batch-tokens"
                                   : "lower --layers or --micro-batch-tokens, or add --recompute");
}

absl::StatusOr<TrainBenchReport> RunTrainBench(const model::ModelSpec& spec,
                                               const TrainBenchOptions& options) {
  ASSIGN_OR_RETURN(const kernels::DeviceLimits device, kernels::QueryDeviceLimits(0));
  const std::vector<MicroBatch> micros = MicroBatchesOf(spec, options);
  const plan::MemoryPlan plan = PlanFor(spec, options, device, micros);
  RETURN_IF_ERROR(CheckTrainBench(plan, options));
  TrainBenchReport report;
  report.planned_bytes = static_cast<double>(plan::Sum(plan.needs.training));
  ASSIGN_OR_RETURN(report.ceiling_flops_per_second, MeasureCeiling());
  const int64_t free_before = kernels::QueryDeviceMemory().free_bytes;
  auto weights = std::make_shared<DeviceWeights>(spec, DType::kBFloat16);
  weights->Randomise(options.seed, nullptr);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  CudaExecutorOptions executor_options;
  executor_options.numerics = options.numerics;
  executor_options.recompute = options.recompute;
  ASSIGN_OR_RETURN(const auto executor, CudaExecutor::Create(/*host=*/nullptr, weights, nullptr,
                                                             device, executor_options));
  const double rows = static_cast<double>(SequencesOf(options) * options.micro_batches) *
                      static_cast<double>(options.sequence_tokens);
  const auto step = [&]() -> absl::Status {
    RETURN_IF_ERROR(
        executor->ForwardBackward(micros, 1,
                                  [&](size_t, const TokenScores& scores, std::span<float> dlogprobs,
                                      std::span<float>) { return Loss(rows, scores, dlogprobs); }));
    executor->Step(executor->GradNorm(), 1e-5);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(step());
  Stopwatch stopwatch;
  for (int64_t i = 0; i < options.steps; ++i) RETURN_IF_ERROR(step());
  report.step_seconds = stopwatch.Lap() / static_cast<double>(options.steps);
  report.tokens_per_second = rows / report.step_seconds;
  const double attention = 6.0 * static_cast<double>(options.sequence_tokens) *
                           static_cast<double>(spec.heads.q_width() * spec.num_layers);
  report.model_flops = rows * (6 * ActiveParameters(spec, weights->layout()) + attention);
  report.memory_bytes = static_cast<double>(free_before - kernels::QueryDeviceMemory().free_bytes);
  return report;
}

}  // namespace orrery::trainer

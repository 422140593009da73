#include "rollout/cuda/decode_bench.h"

#include <algorithm>
#include <chrono>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "rollout/cuda/bench_memory.h"
#include "rollout/cuda/cuda_executor.h"

namespace orrery::rollout::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::kBlockTokens;

double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

constexpr int64_t kCopyBytes = int64_t{4} << 30;  // read, and as many written

double MeasureCopy(cudaStream_t stream) {
  const DeviceBuffer from(kCopyBytes), to(kCopyBytes);
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    CUDA_CHECK(cudaEventRecord(start, stream));
    CUDA_CHECK(
        cudaMemcpyAsync(to.data(), from.data(), kCopyBytes, cudaMemcpyDeviceToDevice, stream));
    CUDA_CHECK(cudaEventRecord(stop, stream));
    CUDA_CHECK(cudaEventSynchronize(stop));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
    best = std::max(best, 2.0 * kCopyBytes / (ms * 1e-3));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return best;
}

// Bytes of the weights that a step reads whatever it routes to.
double DenseBytes(const DeviceWeights& weights) {
  double elements = 0;
  for (const model::Param& p : weights.layout().params) {
    const bool experts =
        p.kind == model::ParamKind::kExpertsGateUp || p.kind == model::ParamKind::kExpertsDown;
    const bool lookup = p.kind == model::ParamKind::kEmbedding &&
                        weights.layout().head != weights.layout().embedding;
    if (!experts && !lookup) elements += static_cast<double>(p.num_elements());
  }
  return elements * static_cast<double>(kernels::SizeOf(weights.dtype()));
}

Step MakeStep(const model::ModelSpec& spec, int64_t batch, int64_t position, int64_t blocks_each,
              bool first, uint64_t seed, int64_t token) {
  Step step;
  for (int64_t i = 0; i < batch; ++i) {
    std::vector<int32_t> table;
    for (int64_t b = 0; b <= position / kBlockTokens; ++b) {
      table.push_back(static_cast<int32_t>(i * blocks_each + b));
    }
    Step::Row row;
    row.token_id = first ? static_cast<int32_t>(HashSeed({seed, static_cast<uint64_t>(i)}) %
                                                static_cast<uint64_t>(spec.vocab_size))
                         : static_cast<int32_t>(-1 - i);
    row.position = static_cast<int32_t>(position);
    row.slot = static_cast<int32_t>(table.back() * kBlockTokens + position % kBlockTokens);
    row.sequence = static_cast<int32_t>(i);
    step.tables.push_back(std::move(table));
    Step::Sample sample;
    sample.row = static_cast<int32_t>(i);
    sample.params.seed = HashSeed({seed, static_cast<uint64_t>(i), 7});
    sample.params.position = static_cast<uint64_t>(token);
    step.rows.push_back(row);
    step.samples.push_back(sample);
  }
  return step;
}

DecodeBenchResult Measure(const DeviceWeights& weights, CudaExecutor* executor, int64_t batch,
                          const DecodeBenchOptions& options, int64_t blocks_each,
                          double copy_bytes_per_second) {
  const model::ModelSpec& spec = weights.spec();
  const int64_t start = options.context - options.steps / 2;
  const auto run = [&](int64_t from, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      if (executor->in_flight() == CudaExecutor::kMaxInFlight) executor->Collect();
      executor->Launch(MakeStep(spec, batch, from + i, blocks_each, i == 0, options.seed, i));
    }
    while (executor->in_flight() > 0) executor->Collect();
  };
  // Every graph that the measured steps need exists before they begin.
  for (int64_t position = start; position < start + options.steps; position += kBlockTokens) {
    run(position, 2);
  }
  run(start + options.steps - 2, 2);
  const Clock::time_point begin = Clock::now();
  run(start, options.steps);
  DecodeBenchResult result;
  result.batch = batch;
  const double seconds = Seconds(begin);
  result.step_ms = seconds * 1e3 / static_cast<double>(options.steps);
  result.tokens_per_second = static_cast<double>(batch * options.steps) / seconds;
  result.bytes =
      DenseBytes(weights) +
      static_cast<double>(CudaOps::KvBytes(spec, weights.dtype(), 1, options.kv_format)) /
          kBlockTokens * static_cast<double>(batch * options.context);
  if (spec.has_moe()) {
    result.experts_touched = executor->ExpertsTouched();
    result.bytes += result.experts_touched * 3.0 *
                    static_cast<double>(spec.expert_width * spec.hidden_size * spec.num_layers *
                                        kernels::SizeOf(weights.dtype()));
  }
  result.roof_tokens_per_second = static_cast<double>(batch) * copy_bytes_per_second / result.bytes;
  return result;
}

// Of a sequence.
int64_t BlocksEach(const DecodeBenchOptions& options) {
  return (options.context + options.steps) / kBlockTokens + 1;
}

OpsLimits LimitsFor(const DecodeBenchOptions& options) {
  const int64_t most = *std::max_element(options.batches.begin(), options.batches.end());
  OpsLimits limits;
  limits.max_rows = limits.max_samples = limits.max_logit_rows = most;
  limits.max_positions = BlocksEach(options) * kBlockTokens;
  limits.kv_blocks = most * BlocksEach(options);
  limits.numerics = options.numerics;
  limits.kv_format = options.kv_format;
  return limits;
}

}  // namespace

plan::MemoryPlan PlanDecodeBench(const model::ModelSpec& spec, const DecodeBenchOptions& options,
                                 const kernels::DeviceLimits& device) {
  const OpsLimits limits = LimitsFor(options);
  plan::MemoryNeeds needs = NeedsOfEngine(spec, device, limits);
  needs.kv.wanted = limits.kv_blocks;
  needs.kv.fixed = true;
  // What the copies take before is given back.
  const int64_t taken = plan::Sum(needs.gpu) + limits.kv_blocks * needs.kv.block_bytes;
  const int64_t copies = device.memory_bytes - device.free_bytes + 2 * kCopyBytes;
  needs.gpu.push_back({"buffers of the measured copy", std::max<int64_t>(0, copies - taken)});
  return plan::Decide(needs, LimitsOf(device));
}

absl::StatusOr<DecodeBenchReport> RunDecodeBench(const model::ModelSpec& spec,
                                                 const DecodeBenchOptions& options) {
  ASSIGN_OR_RETURN(const kernels::DeviceLimits device, kernels::QueryDeviceLimits(0));
  RETURN_IF_ERROR(plan::CheckFits(PlanDecodeBench(spec, options, device),
                                  "lower --batch or --context, or add --float8-kv"));
  const int64_t blocks_each = BlocksEach(options);
  const OpsLimits limits = LimitsFor(options);
  DecodeBenchReport report;
  report.copy_bytes_per_second = MeasureCopy(nullptr);
  const Clock::time_point begin = Clock::now();
  DeviceWeights weights(spec, kernels::DType::kBFloat16);
  weights.Randomise(options.seed, nullptr);
  CudaExecutor executor(&weights, device, limits);
  executor.RandomiseKv(options.seed);
  CUDA_CHECK(cudaDeviceSynchronize());
  report.load_seconds = Seconds(begin);
  for (const int64_t batch : options.batches) {
    report.results.push_back(
        Measure(weights, &executor, batch, options, blocks_each, report.copy_bytes_per_second));
  }
  return report;
}

}  // namespace orrery::rollout::cuda

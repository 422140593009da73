#include "rollout/cuda/rollout_bench.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "rollout/cuda/bench_memory.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "rollout/engine.h"
#include "rollout/response_room.h"

namespace orrery::rollout::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// Percent of the GPU's memory: more than a run leaves, so that caches stay of the size that earlier
// measurements had.
constexpr int64_t kSparePart = 5;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// When each response came.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Clock::time_point> times;
  int64_t tokens = 0;
  std::string error;

  void Add(const Generation& generation) {
    std::lock_guard lock(mutex);
    times.push_back(Clock::now());
    tokens += static_cast<int64_t>(generation.token_ids.size());
    if (generation.finish_reason != FinishReason::kLength)
      error = generation.error + " (not by length)";
    changed.notify_all();
  }
  void WaitFor(size_t n) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return times.size() >= n; });
  }
};

GenerationRequest MakeRequest(const model::ModelSpec& spec, const RolloutBenchOptions& options,
                              int64_t index) {
  GenerationRequest request;
  const auto id = static_cast<uint64_t>(index);
  for (int64_t i = 0; i < options.prompt_tokens; ++i) {
    request.prompt_ids.push_back(
        static_cast<int32_t>(HashSeed({options.seed, id, static_cast<uint64_t>(i)}) %
                             static_cast<uint64_t>(spec.vocab_size)));
  }
  for (int64_t n = 0; n < options.samples; ++n) {
    const int64_t at = index * options.samples + n;
    request.seeds.push_back(HashSeed({options.seed, id, static_cast<uint64_t>(n), 1}));
    request.new_token_limits.push_back(
        options.lengths[static_cast<size_t>(at) % options.lengths.size()]);
  }
  return request;
}

CudaPassExecutorOptions ExecutorOptionsFor(const RolloutBenchOptions& options) {
  CudaPassExecutorOptions result;
  result.numerics = options.numerics;
  result.kv_format = options.kv_format;
  SchedulerLimits& limits = result.scheduler;
  limits.max_running = options.max_running;
  limits.prefill_chunk_tokens = options.prefill_chunk_tokens;
  limits.max_positions =
      options.prompt_tokens + *std::max_element(options.lengths.begin(), options.lengths.end());
  limits.max_draws = std::max<int64_t>(options.samples, 512);
  limits.swap_blocks = BlocksFor(options.swap_tokens);
  return result;
}

// One token alone: what waits for it is the start of everything.
double FirstToken(Engine* engine, const model::ModelSpec& spec, RolloutBenchOptions options) {
  options.samples = 1;
  options.lengths = {1};
  Arrivals arrivals;
  const Clock::time_point begin = Clock::now();
  engine->Submit(MakeRequest(spec, options, options.prompts * options.repeat),
                 [&](size_t, Generation g) { arrivals.Add(g); });
  arrivals.WaitFor(1);
  return Seconds(begin, Clock::now());
}

// One phase; its prompts are those from `first` on.
absl::StatusOr<RolloutPhase> RunPhase(Engine* engine, const model::ModelSpec& spec,
                                      const RolloutBenchOptions& options, int64_t first) {
  const EngineStats before = engine->stats();
  Arrivals arrivals;
  std::vector<RolloutEngine::Submission> submissions;
  for (int64_t i = 0; i < options.prompts; ++i) {
    submissions.push_back(
        {MakeRequest(spec, options, first + i), [&](size_t, Generation g) { arrivals.Add(g); }});
  }
  const Clock::time_point begin = Clock::now();
  engine->SubmitAll(std::move(submissions));
  const auto all = static_cast<size_t>(options.prompts * options.samples);
  arrivals.WaitFor(all);
  if (!arrivals.error.empty()) return InvalidInput("a response ended early: {}", arrivals.error);
  const EngineStats after = engine->stats();
  RolloutPhase phase;
  phase.seconds = Seconds(begin, arrivals.times.back());
  phase.tail_seconds = Seconds(arrivals.times[all - all / 10 - 1], arrivals.times.back());
  phase.new_tokens = arrivals.tokens;
  phase.steps = after.steps - before.steps;
  phase.preemptions = after.preemptions - before.preemptions;
  phase.swaps = after.swaps - before.swaps;
  phase.swapped_out_bytes = after.swapped_out_bytes - before.swapped_out_bytes;
  phase.swapped_in_bytes = after.swapped_in_bytes - before.swapped_in_bytes;
  return phase;
}

}  // namespace

plan::MemoryPlan PlanRolloutBench(const model::ModelSpec& spec, const RolloutBenchOptions& options,
                                  const kernels::DeviceLimits& device) {
  const CudaPassExecutorOptions executor = ExecutorOptionsFor(options);
  plan::MemoryNeeds needs = NeedsOfEngine(spec, device, CudaPassExecutor::ToOpsLimits(executor));
  needs.kv.least = BlocksToRunAlone(executor.scheduler.max_positions);
  needs.kv.wanted = options.prompts * options.samples * needs.kv.least;
  needs.kv.fixed = options.kv_tokens > 0;
  if (needs.kv.fixed) needs.kv.wanted = BlocksFor(options.kv_tokens);
  plan::MemoryLimits limits = LimitsOf(device);
  limits.gpu_spare_bytes = std::max(limits.gpu_spare_bytes, device.memory_bytes / 100 * kSparePart);
  return plan::Decide(needs, limits);
}

absl::StatusOr<RolloutBenchReport> RunRolloutBench(const model::ModelSpec& spec,
                                                   const RolloutBenchOptions& options) {
  if (options.lengths.empty()) return InvalidInput("no lengths of responses were given");
  ASSIGN_OR_RETURN(const kernels::DeviceLimits device, kernels::QueryDeviceLimits(0));
  const Clock::time_point start = Clock::now();
  const plan::MemoryPlan plan = PlanRolloutBench(spec, options, device);
  RETURN_IF_ERROR(plan::CheckFits(
      plan, "lower --max-running, --chunk-tokens or --kv-tokens, or choose a smaller --shape"));
  CudaPassExecutorOptions executor_options = ExecutorOptionsFor(options);
  executor_options.kv_blocks = plan.kv_blocks;
  const SchedulerLimits& limits = executor_options.scheduler;
  auto weights = std::make_unique<DeviceWeights>(spec, kernels::DType::kBFloat16);
  weights->Randomise(options.seed, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  Engine engine(
      std::make_unique<CudaPassExecutor>(std::move(weights), nullptr, device, executor_options),
      nullptr, limits);
  RolloutBenchReport report;
  const double first = FirstToken(&engine, spec, options);
  report.load_seconds = Seconds(start, Clock::now()) - first;
  report.first_token_seconds = first;
  for (int64_t i = 0; i < options.repeat; ++i) {
    ASSIGN_OR_RETURN(RolloutPhase phase, RunPhase(&engine, spec, options, i * options.prompts));
    report.phases.push_back(phase);
  }
  return report;
}

}  // namespace orrery::rollout::cuda

// Memory that changes hands on a GPU changes no result: keys and values that lend theirs to the
// trainer, and optimizer state that lies on the host, against the same with all of it in place.
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fill.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/cuda/dense_model.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/cuda/cuda_executor.h"
#include "trainer/policy_trainer.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using kernels::cuda::MemoryTurns;
using kernels::cuda::PagePool;
using model::DeviceWeights;
using model::WeightStore;

class MemorySharingTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
    store_ = fakes::MakeRandom(kDense, 7, GetParam());
    device_ = *kernels::QueryDeviceLimits(0);
  }
  std::unique_ptr<WeightStore> store_;
  kernels::DeviceLimits device_;
};

std::vector<std::byte> BytesOf(const DeviceWeights& weights) {
  std::vector<std::byte> bytes(static_cast<size_t>(weights.bytes()));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(bytes.data(), weights.data(), bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

// Three steps over made-up gradients, a checkpoint after the second, and one more from there.
struct Outcome {
  std::vector<std::byte> weights, resumed;
  std::string saved;
  std::vector<double> norms;
};

Outcome RunSteps(const WeightStore& store, bool on_host, const std::string& folder) {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int64_t n = store.layout().num_elements;
  const kernels::cuda::DeviceBuffer grads(4 * n);
  Outcome outcome;
  const auto run = [&](DeviceOptimizer* optimizer, DeviceWeights* weights, int step) {
    kernels::cuda::FillUniform(grads.data(), DType::kFloat32, n, -1, 1, HashSeed({9, 1}), stream);
    outcome.norms.push_back(optimizer->GradNorm(grads.as<float>()));
    kernels::cuda::AdamWHyperparameters h;
    h.learning_rate = 1e-2f;
    h.weight_decay = 0.1f;
    h.gradient_scale = 0.5f;
    h.step = step;
    optimizer->Step(h, grads.as<float>(), weights);
  };
  {
    const auto weights = DeviceWeights::CopyOf(store);
    // Pieces of several chunks, more of them than buffers.
    DeviceOptimizer optimizer(*weights, on_host, stream, 3 * kernels::cuda::kAdamWPiece);
    run(&optimizer, weights.get(), 1);
    run(&optimizer, weights.get(), 2);
    EXPECT_TRUE(optimizer.Save(folder, 2).ok());
    run(&optimizer, weights.get(), 3);
    outcome.weights = BytesOf(*weights);
  }
  {
    const auto weights = DeviceWeights::CopyOf(store);
    DeviceOptimizer optimizer(*weights, on_host, stream, 3 * kernels::cuda::kAdamWPiece);
    const absl::StatusOr<int64_t> steps = optimizer.Load(folder, weights.get());
    EXPECT_TRUE(steps.ok() && *steps == 2) << steps.status();
    run(&optimizer, weights.get(), 3);
    outcome.resumed = BytesOf(*weights);
  }
  outcome.saved = *ReadFile(folder + "/optimizer.safetensors");
  CUDA_CHECK(cudaStreamDestroy(stream));
  return outcome;
}

TEST_P(MemorySharingTest, OptimizerOnTheHostIsTheSameBitForBit) {
  const TempFolder here, there;
  const Outcome on_gpu = RunSteps(*store_, false, here.path());
  const Outcome on_host = RunSteps(*store_, true, there.path());
  EXPECT_EQ(on_gpu.norms, on_host.norms);
  EXPECT_TRUE(on_gpu.weights == on_host.weights);
  EXPECT_TRUE(on_gpu.saved == on_host.saved);
  EXPECT_TRUE(on_gpu.resumed == on_gpu.weights);
  EXPECT_TRUE(on_host.resumed == on_host.weights);
}

// Rollouts and optimizer steps in turn; what every token was, its log-prob, and the weights.
struct Curve {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> logprobs;
  std::vector<std::byte> weights;
};

TrainingBatch Rollout(rollout::Engine* engine, uint64_t round, Curve* curve) {
  fakes::Collector collector;
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 6; ++i) {
    GenerationRequest request;
    request.sampling.max_new_tokens = 40;
    for (uint64_t t = 0; t < 20 + i; ++t) {
      request.prompt_ids.push_back(static_cast<int32_t>(HashSeed({i, t, 7}) % 512));
    }
    for (uint64_t n = 0; n < 4; ++n) request.seeds.push_back(HashSeed({round, i, n, 8}));
    engine->Submit(request, collector.Expect(i, 4));
    prompts.push_back(request.prompt_ids);
  }
  collector.Wait();
  TrainingBatch batch;
  for (uint64_t i = 0; i < prompts.size(); ++i) {
    for (const Generation& g : collector.Of(i)) {
      curve->tokens.push_back(g.token_ids);
      curve->logprobs.push_back(g.logprobs);
      TrainingSequence s;
      s.group_id = i;
      s.shared_prefix = static_cast<int32_t>(prompts[i].size());
      s.token_ids = prompts[i];
      s.loss_mask.assign(s.token_ids.size(), 0);
      s.rollout_logprobs.assign(s.token_ids.size(), 0);
      s.token_ids.insert(s.token_ids.end(), g.token_ids.begin(), g.token_ids.end());
      s.loss_mask.resize(s.token_ids.size(), 1);
      s.rollout_logprobs.insert(s.rollout_logprobs.end(), g.logprobs.begin(), g.logprobs.end());
      s.advantages.assign(s.token_ids.size(),
                          static_cast<float>(HashSeed({i, batch.sequences.size(), 9}) % 7) - 3);
      s.episode_tokens = static_cast<int64_t>(g.token_ids.size());
      batch.num_trained_tokens += s.episode_tokens;
      batch.sequences.push_back(std::move(s));
    }
  }
  batch.num_episodes = static_cast<int64_t>(batch.sequences.size());
  return batch;
}

Curve RunCurve(const WeightStore& store, const kernels::DeviceLimits& device,
               const std::shared_ptr<PagePool>& pool, const std::shared_ptr<MemoryTurns>& turns,
               int64_t kv_blocks = 400, int64_t swap_blocks = 0) {
  std::shared_ptr<DeviceWeights> weights = DeviceWeights::CopyOf(store);
  PolicyTrainerOptions options;
  options.schedule.learning_rate = 1e-3;
  CudaExecutorOptions cuda;
  static_cast<ExecutorOptions&>(cuda) = options;
  cuda.pool = pool;
  cuda.turns = turns;
  auto trainer = *PolicyTrainer::Create(
      *CudaExecutor::Create(nullptr, weights, nullptr, device, cuda), options);
  rollout::cuda::CudaPassExecutorOptions engine_options;
  engine_options.scheduler.max_running = 24;
  engine_options.scheduler.prefill_chunk_tokens = 64;
  engine_options.scheduler.max_positions = 256;
  engine_options.scheduler.max_draws = 64;
  engine_options.scheduler.swap_blocks = swap_blocks;
  engine_options.kv_blocks = kv_blocks;
  engine_options.pool = pool;
  engine_options.turns = turns;
  rollout::Engine engine(
      std::make_unique<rollout::cuda::CudaPassExecutor>(weights, nullptr, device, engine_options),
      nullptr, engine_options.scheduler);
  Curve curve;
  for (uint64_t round = 0; round < 5; ++round) {
    TrainingBatch batch = Rollout(&engine, round, &curve);
    EXPECT_TRUE(engine.BeginUpdate(trainer->version() + 1).ok());
    std::vector<TrainingBatch> batches;
    batches.push_back(std::move(batch));
    const auto stats = trainer->Train(std::move(batches));
    EXPECT_TRUE(stats.ok()) << stats.status();
    EXPECT_TRUE(engine.Commit(trainer->version()).ok());
  }
  curve.weights = BytesOf(*weights);
  EXPECT_EQ(engine.stats().swaps > 0, swap_blocks > 0);
  return curve;
}

TEST_P(MemorySharingTest, KeysAndValuesLendTheirMemoryAndNothingChanges) {
  const auto apart = kernels::cuda::MakeDevicePool(), shared = kernels::cuda::MakeDevicePool();
  const auto turns = std::make_shared<MemoryTurns>();
  const Curve expected = RunCurve(*store_, device_, apart, nullptr);
  const Curve got = RunCurve(*store_, device_, shared, turns);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logprobs, expected.logprobs);
  EXPECT_TRUE(got.weights == expected.weights);
  EXPECT_EQ(turns->changes(), 10);
  EXPECT_LT(shared->peak_bytes(), apart->peak_bytes());
  RecordProperty("turn_ms", std::to_string(1e3 * turns->seconds() / 10));
}

// Too few blocks: what is preempted waits in the host's memory, and comes back to memory that was
// lent meanwhile.
TEST_P(MemorySharingTest, SwappedResponsesChangeNothingEither) {
  const auto apart = kernels::cuda::MakeDevicePool(), shared = kernels::cuda::MakeDevicePool();
  const auto turns = std::make_shared<MemoryTurns>();
  const Curve expected = RunCurve(*store_, device_, apart, nullptr);
  const Curve got = RunCurve(*store_, device_, shared, turns, 24, 200);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logprobs, expected.logprobs);
  EXPECT_TRUE(got.weights == expected.weights);
}

INSTANTIATE_TEST_SUITE_P(DTypes, MemorySharingTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16), [](const auto& info) {
                           return info.param == DType::kFloat32 ? "float32" : "bfloat16";
                         });

}  // namespace
}  // namespace orrery::trainer

// Sleep on a GPU: its memory is free meanwhile, addresses stay, and tokens go on as if nothing had
// been, decode graphs that were captured before among it.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "trainer/model/known_shapes.h"

namespace orrery::rollout::cuda {
namespace {

class CudaSleepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
    spec_ = *model::KnownShape("qwen3-0.6b");
    options_.scheduler.max_running = 32;
    options_.scheduler.prefill_chunk_tokens = 128;
    options_.scheduler.max_positions = 1024;
    options_.scheduler.max_draws = 64;
    options_.kv_blocks = 4000;
    options_.pool = kernels::cuda::MakeDevicePool();
  }
  std::vector<std::vector<int32_t>> Generate(bool sleep) {
    auto weights = std::make_shared<DeviceWeights>(spec_, kernels::DType::kBFloat16);
    weights->Randomise(3, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    const void* const at = weights->data();
    Engine engine(std::make_unique<CudaPassExecutor>(weights, nullptr,
                                                     *kernels::QueryDeviceLimits(0), options_),
                  nullptr, options_.scheduler);
    fakes::Collector collector;
    for (uint64_t i = 0; i < 12; ++i) {
      GenerationRequest request;
      for (uint64_t t = 0; t < 20 + 10 * i; ++t) {
        request.prompt_ids.push_back(static_cast<int32_t>(HashSeed({i, t}) % 1000));
      }
      for (uint64_t n = 0; n < 4; ++n) request.seeds.push_back(HashSeed({i, n, 2}));
      request.sampling.max_new_tokens = 200;
      engine.Submit(request, collector.Expect(i, 4));
    }
    for (int i = 0; sleep && i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const int64_t before = kernels::QueryDeviceMemory().free_bytes;
      EXPECT_TRUE(engine.Sleep().ok());
      const int64_t large =
          weights->bytes() + CudaOps::KvBytes(spec_, kernels::DType::kBFloat16, options_.kv_blocks);
      EXPECT_GE(kernels::QueryDeviceMemory().free_bytes - before, large * 95 / 100);
      EXPECT_TRUE(engine.Wake().ok());
      EXPECT_EQ(weights->data(), at);
    }
    collector.Wait();
    swaps_ = engine.stats().swaps;
    std::vector<std::vector<int32_t>> tokens;
    for (uint64_t i = 0; i < 12; ++i) {
      for (const Generation& g : collector.Of(i)) tokens.push_back(g.token_ids);
    }
    return tokens;
  }
  model::ModelSpec spec_;
  CudaPassExecutorOptions options_;
  int64_t swaps_ = 0;
};

TEST_F(CudaSleepTest, FreesItsMemoryAndWakesToTheSameTokens) {
  const std::vector<std::vector<int32_t>> expected = Generate(false);
  EXPECT_EQ(Generate(true), expected);
}

TEST_F(CudaSleepTest, WhatWasSwappedIsComputedAgainAndTokensAreTheSame) {
  const std::vector<std::vector<int32_t>> expected = Generate(false);
  EXPECT_EQ(swaps_, 0);
  options_.kv_blocks = 200;
  options_.scheduler.swap_blocks = 2000;
  EXPECT_EQ(Generate(false), expected);
  EXPECT_GT(swaps_, 0);
  EXPECT_EQ(Generate(true), expected);
  EXPECT_GT(swaps_, 0);
}

}  // namespace
}  // namespace orrery::rollout::cuda

// Sleep in the middle of everything: what is woken ends as if nothing had been.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::rollout {
namespace {

std::vector<std::vector<int32_t>> Generate(const model::WeightStore& store, int sleeps) {
  EngineOptions options;
  options.scheduler.max_positions = store.spec().max_positions;
  options.scheduler.max_running = 6;
  options.scheduler.prefill_chunk_tokens = 16;
  options.kv_blocks = 64;
  Engine engine(&store, nullptr, options);
  fakes::Collector collector;
  for (uint64_t i = 0; i < 8; ++i) {
    GenerationRequest request;
    for (uint64_t t = 0; t < 5 + 3 * i; ++t) {
      request.prompt_ids.push_back(static_cast<int32_t>(3 + HashSeed({i, t}) % 90));
    }
    for (uint64_t n = 0; n < 3; ++n) request.seeds.push_back(HashSeed({i, n, 2}));
    request.sampling.max_new_tokens = 40;
    engine.Submit(request, collector.Expect(i, 3));
  }
  for (int i = 0; i < sleeps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(engine.Sleep().ok());
    EXPECT_EQ(engine.Sleep().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(engine.BeginUpdate(1).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(engine.Wake().ok());
  }
  EXPECT_EQ(engine.Wake().code(), absl::StatusCode::kFailedPrecondition);
  collector.Wait();
  // In the middle of it, not before or after.
  EXPECT_TRUE(sleeps < 2 || engine.stats().preemptions > 0);
  std::vector<std::vector<int32_t>> tokens;
  for (uint64_t i = 0; i < 8; ++i) {
    for (const Generation& g : collector.Of(i)) tokens.push_back(g.token_ids);
  }
  return tokens;
}

TEST(EngineSleepTest, WakesToTheSameTokens) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  const std::vector<std::vector<int32_t>> expected = Generate(*store, 0);
  EXPECT_EQ(Generate(*store, 1), expected);
  EXPECT_EQ(Generate(*store, 20), expected);
}

TEST(EngineSleepTest, NotInsideAnUpdate) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  EngineOptions options;
  options.kv_blocks = 8;
  options.scheduler.max_positions = store->spec().max_positions;
  Engine engine(store.get(), nullptr, options);
  ASSERT_TRUE(engine.BeginUpdate(1).ok());
  EXPECT_EQ(engine.Sleep().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace orrery::rollout

// The most likely tokens at every sampled one's place, as the engine gives them.
#include <gtest/gtest.h>

#include <algorithm>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::rollout {
namespace {

std::vector<Generation> Generate(const model::WeightStore& store, float temperature, int64_t n,
                                 int64_t blocks, int64_t sharded = 16 << 20) {
  EngineOptions options;
  options.scheduler.max_positions = store.spec().max_positions;
  options.scheduler.prefill_chunk_tokens = 9;
  options.kv_blocks = blocks;
  options.sharded_model_bytes = sharded;
  fakes::Collector collector;
  Engine engine(&store, nullptr, options);
  std::vector<Generation> all;
  for (uint64_t i = 0; i < 6; ++i) {
    GenerationRequest request;
    for (uint64_t t = 0; t < 3 + 7 * i; ++t) {
      request.prompt_ids.push_back(
          static_cast<int32_t>(HashSeed({i, t}) % static_cast<uint64_t>(store.spec().vocab_size)));
    }
    for (uint64_t k = 0; k < 4; ++k) request.seeds.push_back(HashSeed({i, k, 1}));
    request.sampling.temperature = temperature;
    request.sampling.max_new_tokens = 20;
    request.top_logprobs = i % 3 == 2 ? 0 : n;
    engine.Submit(std::move(request), collector.Expect(i, 4));
  }
  collector.Wait();
  for (uint64_t i = 0; i < 6; ++i) {
    for (Generation& g : collector.Of(i)) all.push_back(std::move(g));
  }
  return all;
}

bool Same(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token_id == b.token_id && a.logprob == b.logprob;
}

TEST(TopLogprobsTest, StandBesideEverySampledToken) {
  for (const char* family : {"qwen3", "qwen3_moe"}) {
    const auto store = fakes::LoadTiny(family, kernels::DType::kBFloat16);
    for (const float temperature : {0.0f, 0.8f}) {
      const std::vector<Generation> plain = Generate(*store, temperature, 0, 200);
      const std::vector<Generation> got = Generate(*store, temperature, 5, 200);
      const std::vector<Generation> tight = Generate(*store, temperature, 5, 8);
      const std::vector<Generation> whole = Generate(*store, temperature, 5, 200, 0);
      size_t among = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const Generation& g = got[i];
        EXPECT_EQ(g.token_ids, plain[i].token_ids) << "looking changes nothing";
        const size_t n = i / 4 % 3 == 2 ? 0 : 5;
        ASSERT_EQ(g.top_logprobs.size(), n * g.token_ids.size());
        for (const auto& other : {tight[i], whole[i]}) {
          EXPECT_TRUE(std::equal(g.top_logprobs.begin(), g.top_logprobs.end(),
                                 other.top_logprobs.begin(), other.top_logprobs.end(), Same));
        }
        for (size_t t = 0; t < g.token_ids.size() && n > 0; ++t) {
          const auto begin = g.top_logprobs.begin() + static_cast<int64_t>(t * n), end = begin + 5;
          EXPECT_TRUE(std::is_sorted(
              begin, end, [](const auto& a, const auto& b) { return a.logprob > b.logprob; }));
          const auto own = std::find_if(
              begin, end, [&](const TokenLogprob& top) { return top.token_id == g.token_ids[t]; });
          if (own != end) {
            EXPECT_EQ(own->logprob, g.logprobs[t]);
            ++among;
          } else {
            EXPECT_GE((end - 1)->logprob, g.logprobs[t]);
          }
          if (temperature == 0) {
            EXPECT_EQ(begin->token_id, g.token_ids[t]);
          }
        }
      }
      EXPECT_GT(among, 0u);
    }
  }
}

TEST(TopLogprobsTest, WhatCannotBeGivenIsRefused) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  for (const int64_t n : {-1, 21}) {
    for (const Generation& g : Generate(*store, 1, n, 200)) {
      if (g.finish_reason != FinishReason::kRejected) continue;
      EXPECT_NE(g.error.find("0 to 20 can be given"), std::string::npos) << g.error;
    }
    EXPECT_EQ(Generate(*store, 1, n, 200)[0].finish_reason, FinishReason::kRejected);
  }
}

}  // namespace
}  // namespace orrery::rollout

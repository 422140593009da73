// Preemption by swap: every pass finds in its blocks what was computed for their positions,
// whatever was moved to the host and back meanwhile; nothing is computed twice where the host has
// room; and a real model's tokens are those of an engine that never preempts.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "rollout/kv_cache.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/made_up_executor.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::rollout {
namespace {

using kernels::kBlockTokens;

TEST(SwapSpaceTest, SavesRestoresAndForgets) {
  SwapSpace space(3);
  SavedBlocks a, b;
  ASSERT_TRUE(space.Save(std::vector<int32_t>{7, 4}, 20, &a));
  EXPECT_EQ(a.num_positions, 20);
  EXPECT_FALSE(space.Save(std::vector<int32_t>{1, 2}, 20, &b)) << "there is room for one more";
  EXPECT_TRUE(b.empty() && b.host_blocks.empty());
  ASSERT_TRUE(space.Save(std::vector<int32_t>{1}, 3, &b));
  EXPECT_EQ(space.num_free(), 0);
  space.Restore(std::vector<int32_t>{9, 8, 5}, &a);
  EXPECT_TRUE(a.empty() && a.host_blocks.empty());
  const std::vector<KvSwap> expected = {
      {7, 0, true}, {4, 1, true}, {1, 2, true}, {9, 0, false}, {8, 1, false}};
  EXPECT_EQ(space.TakeSwaps(), expected);
  EXPECT_TRUE(space.TakeSwaps().empty());
  space.Forget(&b);
  space.Forget(&b);
  EXPECT_EQ(space.num_free(), 3);
}

// What a position's keys and values were computed of: the request, the response (-1: the prompt),
// the position, and everything they depend on: weights, and what the positions before hold.
struct Named {
  RequestId request = 0;
  int64_t response = 0, position = -1;
  PolicyVersion version = 0;
  uint64_t prompt = 0;  // of a response: a hash of the versions that its prompt's had
  bool operator==(const Named&) const = default;
};

struct Counts {
  int64_t again = 0, out = 0, in = 0;
};

class NamingExecutor : public fakes::MadeUpExecutor {
 public:
  NamingExecutor(int depth, int64_t blocks, int64_t swap_blocks, Counts* counts)
      : MadeUpExecutor(depth, blocks),
        device_(static_cast<size_t>(blocks * kBlockTokens)),
        host_(static_cast<size_t>(swap_blocks * kBlockTokens)),
        counts_(*counts) {}
  void Sleep() override { std::fill(device_.begin(), device_.end(), Named{}); }
  int64_t BlockBytes() const override { return 1000; }

  void Swap(std::span<const KvSwap> swaps) override {
    EXPECT_FALSE(swaps.empty());
    for (const KvSwap& s : swaps) {
      ++(s.out ? counts_.out : counts_.in);
      for (int64_t i = 0; i < kBlockTokens; ++i) {
        Named& device = At(s.block, i);
        Named& host = host_.at(static_cast<size_t>(s.host_block * kBlockTokens + i));
        (s.out ? host : device) = s.out ? device : host;
      }
    }
  }
  void Launch(std::span<const Work> pass, std::span<const Draw> draws,
              const Copies& copies) override {
    for (const kernels::KvCopy& c : copies) {
      for (int32_t i = 0; i < c.count; ++i) At(c.to_block, i) = At(c.from_block, i);
    }
    for (const Work& w : pass) Compute(w);
    Finish(draws);
  }

 private:
  Named& At(int32_t block, int64_t offset) {
    return device_.at(static_cast<size_t>(block * kBlockTokens + offset));
  }
  void Compute(const Work& w) {
    const int64_t prompt = w.request->prompt_size();
    uint64_t prompt_hash = 0;
    for (int64_t p = 0; p < w.first_position + w.count; ++p) {
      Named& there = At(w.blocks()[static_cast<size_t>(p / kBlockTokens)], p % kBlockTokens);
      const bool of_prompt = p < prompt;
      const int64_t response = of_prompt ? -1 : static_cast<int64_t>(w.response->index);
      if (p >= w.first_position) {
        there = {w.request->id, response, p, version(), of_prompt ? 0 : prompt_hash};
        counts_.again += computed_[{w.request->id, response, p}]++ > 0;
      }
      ASSERT_EQ(there.request, w.request->id) << "position " << p;
      ASSERT_EQ(there.response, response) << "position " << p;
      ASSERT_EQ(there.position, p);
      if (of_prompt) {
        prompt_hash = HashSeed({prompt_hash, static_cast<uint64_t>(there.version)});
      } else {
        ASSERT_EQ(there.prompt, prompt_hash)
            << "position " << p << " was computed upon another prompt's keys and values";
      }
    }
  }

  std::vector<Named> device_, host_;
  std::map<std::tuple<RequestId, int64_t, int64_t>, int> computed_;
  Counts& counts_;
};

struct Load {
  int depth = 1;
  int64_t blocks = 16, swap_blocks = 0;
  uint64_t seed = 0;
  bool aborts = false;
  // Meanwhile: weights change, and the engine sleeps.
  int updates = 0, sleeps = 0;
};

GenerationRequest MakeRequest(uint64_t seed, uint64_t i, int64_t vocabulary) {
  GenerationRequest request;
  for (uint64_t t = 0; t < 1 + HashSeed({seed, i, 1}) % 70; ++t) {
    request.prompt_ids.push_back(
        static_cast<int32_t>(HashSeed({seed, i, t, 5}) % static_cast<uint64_t>(vocabulary)));
  }
  for (uint64_t n = 0; n <= HashSeed({seed, i, 2}) % 4; ++n) {
    request.seeds.push_back(HashSeed({seed, i, n, 3}));
  }
  request.sampling.max_new_tokens = 1 + static_cast<int64_t>(HashSeed({seed, i, 4}) % 60);
  request.sampling.stop_token_ids = {7};
  return request;
}

struct Outcome {
  std::vector<Generation> generations;
  EngineStats stats;
  Counts counts;
};

constexpr uint64_t kRequests = 16;

void Disturb(const Load& load, const fakes::Collector& collector, Engine* engine) {
  const auto wait = [&](int64_t steps) {  // so that something happens in between
    for (steps += engine->stats().steps;
         engine->stats().steps < steps && collector.missing() > 0;) {
      std::this_thread::yield();
    }
  };
  for (int i = 0; i < std::max(load.updates, load.sleeps); ++i) {
    wait(3 + i);
    if (i < load.updates) {
      ASSERT_TRUE(engine->BeginUpdate(i + 2).ok());
      ASSERT_TRUE(engine->Commit(i + 2).ok());
    }
    wait(1);
    if (i < load.sleeps) {
      ASSERT_TRUE(engine->Sleep().ok());
      ASSERT_TRUE(engine->Wake().ok());
    }
  }
}

Outcome Generate(const Load& load) {
  SchedulerLimits limits;
  limits.max_running = 10;
  limits.prefill_chunk_tokens = 1 + static_cast<int64_t>(HashSeed({load.seed, 9}) % 40);
  limits.max_positions = 200;
  limits.swap_blocks = load.swap_blocks;
  Outcome outcome;
  fakes::Collector collector;
  {
    Engine engine(std::make_unique<NamingExecutor>(load.depth, load.blocks, load.swap_blocks,
                                                   &outcome.counts),
                  nullptr, limits);
    for (uint64_t i = 0; i < kRequests; ++i) {
      GenerationRequest request = MakeRequest(load.seed, i, 50);
      const size_t n = request.seeds.size();
      const RequestId id = engine.Submit(std::move(request), collector.Expect(i, n));
      if (load.aborts && i % 5 == 2) engine.Abort(id);
    }
    Disturb(load, collector, &engine);
    collector.Wait();
    outcome.stats = engine.stats();
  }
  for (uint64_t i = 0; i < kRequests; ++i) {
    for (Generation& g : collector.Of(i)) outcome.generations.push_back(std::move(g));
  }
  return outcome;
}

void ExpectSameTokens(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.generations.size(), want.generations.size());
  for (size_t i = 0; i < got.generations.size(); ++i) {
    ASSERT_EQ(got.generations[i].token_ids, want.generations[i].token_ids);
    ASSERT_EQ(got.generations[i].logprobs, want.generations[i].logprobs);
  }
}

TEST(SwapTest, BlocksComeBackAsTheyWereAndNothingIsComputedTwice) {
  int64_t swaps = 0, fallbacks = 0;
  for (uint64_t seed = 0; seed < 15; ++seed) {
    for (const int64_t blocks : {16, 24}) {
      for (const int depth : {1, 2}) {
        const Outcome recomputed = Generate({depth, blocks, 0, seed});
        ASSERT_EQ(recomputed.stats.swaps, 0);
        ASSERT_EQ(recomputed.counts.out, 0);
        const Outcome swapped = Generate({depth, blocks, 400, seed});
        ExpectSameTokens(swapped, recomputed);
        EXPECT_EQ(swapped.counts.again, 0);
        EXPECT_EQ(swapped.stats.swapped_out_bytes, 1000 * swapped.counts.out);
        EXPECT_EQ(swapped.stats.swapped_in_bytes, 1000 * swapped.counts.in);
        EXPECT_LE(swapped.counts.in, swapped.counts.out);
        swaps += swapped.stats.swaps;
        const Outcome mixed = Generate({depth, blocks, 3, seed});  // the pool is often full
        ExpectSameTokens(mixed, recomputed);
        if (mixed.stats.swaps > 0) fallbacks += mixed.stats.preemptions - mixed.stats.swaps;
      }
    }
  }
  EXPECT_GT(swaps, 50);
  EXPECT_GT(fallbacks, 50) << "the host's memory was never full";
}

TEST(SwapTest, AbortsLeaveNothingBehind) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const int depth : {1, 2}) {
      for (const int64_t swap_blocks : {6, 400}) {
        const Outcome got = Generate({depth, 16, swap_blocks, seed, true});
        for (size_t i = 0; i < got.generations.size(); ++i) {
          EXPECT_NE(got.generations[i].finish_reason, FinishReason::kRejected);
        }
      }
    }
  }
}

// Keys and values survive new weights, in either memory, but a response never goes on upon a prompt
// that was computed anew.
TEST(SwapTest, NewWeightsAndSleepBetweenPasses) {
  int64_t swaps = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    for (const int depth : {1, 2}) {
      const Outcome undisturbed = Generate({depth, 400, 0, seed});
      for (const int64_t swap_blocks : {5, 12, 400}) {
        const Outcome got =
            Generate({depth, 16, swap_blocks, seed, false, 20, seed % 3 == 0 ? 4 : 0});
        ExpectSameTokens(got, undisturbed);
        swaps += got.stats.swaps;
      }
    }
  }
  EXPECT_GT(swaps, 100);
}

// The scheduler alone, step by step, with new weights now and then.
void RunWithUpdates(uint64_t seed, int64_t swap_blocks, Counts* counts) {
  RandomStream random(HashSeed({seed, 31}));
  SchedulerLimits limits;
  limits.max_running = 10;
  limits.prefill_chunk_tokens = 1 + static_cast<int64_t>(HashSeed({seed, 9}) % 40);
  limits.max_positions = 200;
  limits.swap_blocks = swap_blocks;
  NamingExecutor executor(1, 16, swap_blocks, counts);
  Scheduler scheduler(executor.pool(), limits);
  for (uint64_t i = 0; i < kRequests; ++i) {
    scheduler.Add(i + 1, MakeRequest(seed, i, 50), nullptr);
  }
  for (int steps = 0; !scheduler.empty(); ++steps) {
    ASSERT_LT(steps, 20000);
    if (random.Uniform() < 0.2) {
      ASSERT_TRUE(executor.TakeWeights(executor.version() + 1).ok());
      scheduler.WeightsChanged();
    }
    Copies copies;
    const std::vector<Work> pass = scheduler.Next(&copies);
    const std::vector<KvSwap> swaps = scheduler.TakeSwaps();
    if (!swaps.empty()) executor.Swap(swaps);
    executor.Launch(pass, {}, copies);
    (void)executor.Collect();
    scheduler.Done(pass);
    const auto take = [&](Request* request, Response* r) {
      r->generation.token_ids.push_back(1);
      const auto n = static_cast<int64_t>(r->generation.token_ids.size());
      return n == request->what.new_tokens(r->index) && scheduler.Finish(request, r);
    };
    for (const Work& w : pass) {
      if (!w.samples) continue;
      if (w.response != nullptr) {
        take(w.request, w.response);
        continue;
      }
      for (size_t i = 0, n = w.request->responses.size(); i < n; ++i) {
        Response* r = &w.request->responses[i];
        if (!r->finished && r->generation.token_ids.empty() && take(w.request, r)) break;
      }
    }
  }
}

TEST(SwapTest, NothingGoesOnUponAPromptOfOtherWeights) {
  Counts counts;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const int64_t swap_blocks : {2, 5, 12, 400}) {
      ASSERT_NO_FATAL_FAILURE(RunWithUpdates(seed, swap_blocks, &counts));
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(counts.in, 1000);
  EXPECT_GT(counts.again, 1000);
}

// Tokens and log-probs of a model on the CPU, with next to no room, against one that never waits.
class RealSwapTest : public testing::TestWithParam<kernels::DType> {};

Outcome GenerateReal(const model::WeightStore& store, int64_t blocks, int64_t swap_blocks,
                     uint64_t seed, int sleeps = 0) {
  EngineOptions options;
  options.scheduler.max_positions = store.spec().max_positions;
  options.scheduler.max_running = 8;
  options.scheduler.prefill_chunk_tokens = 1 + static_cast<int64_t>(HashSeed({seed, 9}) % 40);
  options.scheduler.swap_blocks = swap_blocks;
  options.kv_blocks = blocks;
  Engine engine(&store, nullptr, options);
  fakes::Collector collector;
  for (uint64_t i = 0; i < 8; ++i) {
    GenerationRequest request = MakeRequest(seed, i, store.spec().vocab_size);
    const size_t n = request.seeds.size();
    engine.Submit(std::move(request), collector.Expect(i, n));
  }
  for (int i = 0; i < sleeps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_TRUE(engine.Sleep().ok());
    EXPECT_TRUE(engine.Wake().ok());
  }
  collector.Wait();
  Outcome outcome;
  outcome.stats = engine.stats();
  for (uint64_t i = 0; i < 8; ++i) {
    for (Generation& g : collector.Of(i)) outcome.generations.push_back(std::move(g));
  }
  return outcome;
}

TEST_P(RealSwapTest, TokensAreThoseOfAnEngineThatNeverPreempts) {
  const auto store = fakes::LoadTiny("qwen3_moe", GetParam());
  const int64_t block_bytes = KvCache::BlockBytes(store->spec());
  int64_t swaps = 0, fallbacks = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Outcome want = GenerateReal(*store, 400, 0, seed);
    ASSERT_EQ(want.stats.preemptions, 0);
    for (const int64_t blocks : {10, 14}) {
      const Outcome all = GenerateReal(*store, blocks, 400, seed);
      ExpectSameTokens(all, want);
      EXPECT_EQ(all.stats.swapped_out_bytes % block_bytes, 0);
      EXPECT_EQ(all.stats.prompt_tokens, want.stats.prompt_tokens) << "a prompt was recomputed";
      swaps += all.stats.swaps;
      const Outcome some = GenerateReal(*store, blocks, 4, seed);
      ExpectSameTokens(some, want);
      fallbacks += some.stats.preemptions - some.stats.swaps;
      ExpectSameTokens(GenerateReal(*store, blocks, 400, seed, 3), want);
    }
  }
  EXPECT_GT(swaps, 10);
  EXPECT_GT(fallbacks, 3);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RealSwapTest,
                         testing::Values(kernels::DType::kFloat32, kernels::DType::kBFloat16),
                         [](const auto& info) {
                           return info.param == kernels::DType::kFloat32 ? "float32" : "bfloat16";
                         });

}  // namespace
}  // namespace orrery::rollout

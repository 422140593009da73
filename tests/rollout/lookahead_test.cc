// The engine with an executor that is one pass ahead: what it delivers is what an executor without
// lookahead gives, with stop tokens, aborts, preemption and weight updates in between.
#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/made_up_executor.h"

namespace orrery::rollout {
namespace {

// Insists on being told the tokens before: a row's token must be the one that was drawn for its
// position, by value or as a pending draw.
class InsistingExecutor : public fakes::MadeUpExecutor {
 public:
  using MadeUpExecutor::MadeUpExecutor;
  absl::Status TakeWeights(PolicyVersion version) override {
    EXPECT_TRUE(in_flight_.empty()) << "weights change under a pass";
    return MadeUpExecutor::TakeWeights(version);
  }

  void Launch(std::span<const Work> pass, std::span<const Draw> draws, const Copies&) override {
    ASSERT_LT(static_cast<int>(in_flight_.size()), depth());
    for (const Work& w : pass) {
      if (w.response == nullptr) continue;
      const auto last = w.first_position + w.count - 1 - w.request->prompt_size();
      const auto known = static_cast<int64_t>(w.response->generation.token_ids.size());
      if (last < known) continue;
      ASSERT_EQ(last, known);
      ASSERT_EQ(w.response->num_pending, 1);
      ASSERT_FALSE(in_flight_.empty());
      EXPECT_EQ(in_flight_.back().samples.at(w.response->pending_draw).token_id,
                Token(*w.request, *w.response, known));
    }
    Finish(draws);
  }
};

std::vector<Generation> Generate(int depth, int64_t blocks, uint64_t seed, EngineStats* stats) {
  SchedulerLimits limits;
  limits.max_running = 12;
  limits.prefill_chunk_tokens = 40;
  limits.max_positions = 200;
  fakes::Collector collector;
  std::vector<Generation> all;
  {
    Engine engine(std::make_unique<InsistingExecutor>(depth, blocks), nullptr, limits);
    for (uint64_t i = 0; i < 20; ++i) {
      GenerationRequest request;
      request.prompt_ids.assign(1 + HashSeed({seed, i, 1}) % 70, 3);
      for (uint64_t n = 0; n <= HashSeed({seed, i, 2}) % 4; ++n) {
        request.seeds.push_back(HashSeed({seed, i, n, 3}));
      }
      request.sampling.max_new_tokens = 1 + static_cast<int64_t>(HashSeed({seed, i, 4}) % 60);
      request.sampling.stop_token_ids = {7};
      const size_t n = request.seeds.size();
      engine.Submit(std::move(request), collector.Expect(i, n));
    }
    collector.Wait();
    *stats = engine.stats();
  }
  for (uint64_t i = 0; i < 20; ++i) {
    for (Generation& g : collector.Of(i)) all.push_back(std::move(g));
  }
  return all;
}

TEST(LookaheadTest, DeliversWhatAnExecutorWithoutItDelivers) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const int64_t blocks : {16, 30, 200}) {
      EngineStats stats;
      const std::vector<Generation> one = Generate(1, blocks, seed, &stats);
      const std::vector<Generation> two = Generate(2, blocks, seed, &stats);
      preemptions += stats.preemptions;
      ASSERT_EQ(one.size(), two.size());
      for (size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i].token_ids, two[i].token_ids);
        ASSERT_EQ(one[i].finish_reason, two[i].finish_reason);
      }
    }
  }
  EXPECT_GT(preemptions, 50);
}

TEST(LookaheadTest, WeightsChangeBetweenPassesAndAbortsAreHeard) {
  SchedulerLimits limits;
  limits.max_positions = 100000;
  fakes::Collector collector;
  Engine engine(std::make_unique<InsistingExecutor>(2, 4000), nullptr, limits);
  GenerationRequest request;
  request.prompt_ids = {1, 2, 3};
  request.seeds = {1, 2, 3};
  request.sampling.max_new_tokens = 20000;
  const RequestId id = engine.Submit(std::move(request), collector.Expect(0, 3));
  for (PolicyVersion version = 2; version < 40; ++version) {
    ASSERT_TRUE(engine.BeginUpdate(version).ok());
    ASSERT_TRUE(engine.Commit(version).ok());
  }
  engine.Abort(id);
  collector.Wait();
  for (const Generation& g : collector.Of(0)) {
    if (g.finish_reason == FinishReason::kLength) continue;
    EXPECT_EQ(g.finish_reason, FinishReason::kAborted);
    EXPECT_EQ(g.token_ids.size(), g.versions.size());
    EXPECT_TRUE(std::is_sorted(g.versions.begin(), g.versions.end()));
  }
}

}  // namespace
}  // namespace orrery::rollout

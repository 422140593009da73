// The scheduler without a model: a loop that answers every sampling position with a made-up token.
#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "orchestrator/base/hash.h"

namespace orrery::rollout {
namespace {

using kernels::kBlockTokens;

GenerationRequest MakeRequest(int64_t prompt, size_t n, int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompt_ids.assign(static_cast<size_t>(prompt), 7);
  request.seeds.assign(n, 1);
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

// Runs a scheduler and checks every pass.
class Driver {
 public:
  // stop_seed: responses stop now and then before their limit; 0: never.
  Driver(int64_t num_blocks, const SchedulerLimits& limits, uint64_t stop_seed = 0)
      : limits_(limits), stop_seed_(stop_seed), cache_(num_blocks), scheduler_(&cache_, limits) {}

  absl::Status Add(GenerationRequest request) {
    if (absl::Status s = scheduler_.Admit(request); !s.ok()) return s;
    expected_ += request.seeds.size();
    scheduler_.Add(++last_id_, std::move(request), nullptr);
    return absl::OkStatus();
  }
  void Abort(RequestId id) {
    Request* request = scheduler_.Find(id);
    if (request == nullptr) return;
    for (size_t i = 0, n = request->responses.size(); i < n; ++i) {
      if (!request->responses[i].finished && Finish(request, &request->responses[i])) return;
    }
  }
  void Step() {
    Copies copies;
    const std::vector<Work> pass = scheduler_.Next(&copies);
    ASSERT_FALSE(pass.empty());
    for (const KvSwap& swap : scheduler_.TakeSwaps()) {
      ASSERT_LT(swap.host_block, limits_.swap_blocks);
      ASSERT_LT(swap.block, cache_.num_blocks());
    }
    for (const kernels::KvCopy& copy : copies) {
      EXPECT_EQ(cache_.references(copy.to_block), 1);
      EXPECT_GT(cache_.references(copy.from_block), 0);
    }
    Check(pass);
    scheduler_.Done(pass);
    for (const Work& w : pass) {
      if (!w.samples) continue;
      const RequestId id = w.request->id;
      if (w.response != nullptr) {
        Token(w.request, w.response);
        continue;
      }
      for (size_t i = 0; scheduler_.Find(id) != nullptr && i < w.request->responses.size(); ++i) {
        Response* r = &w.request->responses[i];
        if (!r->finished && r->generation.token_ids.empty()) Token(w.request, r);
      }
    }
    ++steps_;
  }
  // Until all is done; a scheduler that makes no progress fails.
  void RunAll(int64_t max_steps) {
    while (!scheduler_.empty()) {
      ASSERT_LT(steps_, max_steps) << "no end in sight: " << finished_ << " of " << expected_;
      ASSERT_NO_FATAL_FAILURE(Step());
    }
    EXPECT_EQ(finished_, expected_);
    EXPECT_EQ(cache_.num_free(), cache_.num_blocks());
    EXPECT_EQ(scheduler_.swap().num_free(), limits_.swap_blocks);
    EXPECT_EQ(scheduler_.num_running(), 0);
  }
  Scheduler& scheduler() { return scheduler_; }
  BlockPool& cache() { return cache_; }
  int64_t steps() const { return steps_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  RequestId last_id() const { return last_id_; }

 private:
  void Check(const std::vector<Work>& pass) {
    std::set<int32_t> written;
    std::set<std::pair<const void*, const void*>> seen;
    int64_t running = 0, prefill = 0;
    for (const Work& w : pass) {
      ASSERT_GT(w.count, 0);
      ASSERT_TRUE(seen.insert({w.request, w.response}).second) << "one thing twice in a pass";
      const int64_t end = w.first_position + w.count;
      ASSERT_LE(end, static_cast<int64_t>(w.blocks().size()) * kBlockTokens);
      for (int64_t b = w.first_position / kBlockTokens; b * kBlockTokens < end; ++b) {
        const int32_t block = w.blocks()[static_cast<size_t>(b)];
        EXPECT_EQ(cache_.references(block), 1) << "writes a block that somebody else reads";
        EXPECT_TRUE(written.insert(block).second);
      }
      for (int32_t block : w.blocks()) ASSERT_GT(cache_.references(block), 0);
      const int64_t known =
          w.response != nullptr ? w.request->num_known(*w.response) : w.request->prompt_size();
      EXPECT_EQ(w.samples, end == known);
      if (w.response != nullptr) {
        EXPECT_EQ(w.first_position, w.response->num_computed);
        EXPECT_TRUE(w.response->running);
        ++running;
      } else {
        EXPECT_EQ(w.first_position, w.request->prompt_computed);
        prompt_tokens_ += w.count;
      }
      if (w.response == nullptr || w.count > 1) prefill += w.count;
    }
    EXPECT_EQ(running, scheduler_.num_running());
    EXPECT_LE(running, limits_.max_running);
    // A response that catches up may take one token where the budget is spent.
    EXPECT_LE(prefill, limits_.prefill_chunk_tokens + running);
  }
  void Token(Request* request, Response* response) {
    response->generation.token_ids.push_back(9);
    const int64_t n = static_cast<int64_t>(response->generation.token_ids.size());
    const uint64_t draw = HashSeed({stop_seed_, request->id, response->index, uint64_t(n)});
    if (n >= request->what.sampling.max_new_tokens || (stop_seed_ != 0 && draw % 40 == 0) ||
        request->num_known(*response) >= limits_.max_positions) {
      Finish(request, response);
    }
  }
  bool Finish(Request* request, Response* response) {
    ++finished_;
    return scheduler_.Finish(request, response);
  }

  const SchedulerLimits limits_;
  const uint64_t stop_seed_;
  BlockPool cache_;
  Scheduler scheduler_;
  RequestId last_id_ = 0;
  size_t expected_ = 0, finished_ = 0;
  int64_t steps_ = 0, prompt_tokens_ = 0;
};

SchedulerLimits Limits() {
  SchedulerLimits limits;
  limits.max_positions = 256;
  return limits;
}

TEST(SchedulerTest, PromptIsComputedOnceAndItsFullBlocksAreShared) {
  Driver driver(64, Limits());
  ASSERT_TRUE(driver.Add(MakeRequest(40, 8, 5)).ok());
  driver.Step();  // the prompt: 3 blocks; 8 first tokens
  EXPECT_EQ(driver.cache().num_free(), 61);
  driver.Step();  // each response: a copy of the third block
  EXPECT_EQ(driver.cache().num_free(), 61 - 8);
  EXPECT_EQ(driver.scheduler().num_running(), 8);
  driver.RunAll(10);
  EXPECT_EQ(driver.prompt_tokens(), 40);
  EXPECT_EQ(driver.scheduler().num_preemptions(), 0);
}

TEST(SchedulerTest, PromptsGoInChunks) {
  SchedulerLimits limits = Limits();
  limits.prefill_chunk_tokens = 16;
  Driver driver(64, limits);
  ASSERT_TRUE(driver.Add(MakeRequest(40, 1, 1)).ok());
  driver.RunAll(10);
  EXPECT_EQ(driver.steps(), 3);
}

TEST(SchedulerTest, RefusesWhatCannotRun) {
  Driver driver(4, Limits());
  const auto message = [&](const GenerationRequest& request) {
    return std::string(driver.scheduler().Admit(request).message());
  };
  EXPECT_NE(message(MakeRequest(0, 1, 5)).find("no tokens"), std::string::npos);
  EXPECT_NE(message(MakeRequest(5, 0, 5)).find("no responses"), std::string::npos);
  EXPECT_NE(message(MakeRequest(256, 1, 5)).find("256"), std::string::npos);
  EXPECT_NE(message(MakeRequest(5, 1, 0)).find("max_new_tokens"), std::string::npos);
  EXPECT_NE(message(MakeRequest(5, 1, -3)).find("max_new_tokens"), std::string::npos);
  EXPECT_NE(message(MakeRequest(40, 1, 9)).find("kv_tokens"), std::string::npos);
  EXPECT_TRUE(driver.Add(MakeRequest(40, 1, 8)).ok());
  // No limit but the context's: no overflow.
  EXPECT_NE(message(MakeRequest(5, 1, INT64_MAX)).find("kv_tokens"), std::string::npos);
  driver.RunAll(20);
}

TEST(SchedulerTest, WhatWasAdmittedRunsAloneInTheSmallestCache) {
  for (int64_t prompt : {1, 15, 16, 17, 31, 32, 33}) {
    for (int64_t max_new : {1, 2, 15, 16, 17, 30}) {
      const int64_t blocks = (prompt + max_new + kBlockTokens - 1) / kBlockTokens + 1;
      Driver driver(blocks, Limits());
      ASSERT_TRUE(driver.Add(MakeRequest(prompt, 5, max_new)).ok());
      ASSERT_TRUE(driver.Add(MakeRequest(prompt, 2, max_new)).ok());
      ASSERT_NO_FATAL_FAILURE(driver.RunAll(5000)) << prompt << " + " << max_new;
    }
  }
}

// Young prompts that hold blocks must give them up to an older response that needs several.
TEST(SchedulerTest, OlderResponseIsNotStarvedByYoungerPrompts) {
  Driver driver(9, Limits());
  ASSERT_TRUE(driver.Add(MakeRequest(16, 2, 100)).ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(driver.Add(MakeRequest(16, 2, 3)).ok());
  driver.RunAll(2000);
}

TEST(SchedulerTest, RandomLoadsEndAndGiveAllBlocksBack) {
  int64_t preemptions = 0, swaps = 0;
  for (uint64_t i = 0; i <= 1200; ++i) {
    // The last one once went round for ever: a dropped prompt came back before the older response
    // that needed its blocks and more.
    const uint64_t seed = i < 1200 ? i : 13212;
    RandomStream random(HashSeed({seed}));
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random.Uniform() * static_cast<double>(high - low + 1));
    };
    SchedulerLimits limits = Limits();
    limits.max_running = pick(1, 12);
    limits.prefill_chunk_tokens = pick(0, 1) == 0 ? pick(1, 20) : 512;
    limits.max_positions = pick(40, 120);
    if (i >= 600 && i < 1200) limits.swap_blocks = pick(0, 1) == 0 ? pick(1, 8) : 500;
    Driver driver(pick(4, 20), limits, seed % 3);
    for (int64_t requests = pick(1, 12); requests > 0; --requests) {
      (void)driver.Add(MakeRequest(pick(1, 60), static_cast<size_t>(pick(1, 6)), pick(1, 70)));
      for (int64_t s = pick(0, 8); s > 0 && !driver.scheduler().empty(); --s) {
        ASSERT_NO_FATAL_FAILURE(driver.Step()) << "seed " << seed;
      }
      if (pick(0, 3) == 0) driver.Abort(static_cast<RequestId>(pick(0, driver.last_id())));
      if (limits.swap_blocks == 0) continue;
      if (pick(0, 3) == 0) driver.scheduler().WeightsChanged();
      if (pick(0, 7) == 0) driver.scheduler().DropAll();
    }
    ASSERT_NO_FATAL_FAILURE(driver.RunAll(20000)) << "seed " << seed;
    preemptions += driver.scheduler().num_preemptions();
    swaps += driver.scheduler().num_swaps();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(swaps, 100);
}

TEST(BlockPoolTest, CountsReferences) {
  BlockPool cache(2);
  const int32_t a = cache.Allocate(), b = cache.Allocate();
  EXPECT_NE(a, b);
  EXPECT_EQ(cache.Allocate(), -1);
  cache.Retain(a);
  cache.Release(a);
  EXPECT_EQ(cache.num_free(), 0);
  cache.Release(a);
  EXPECT_EQ(cache.num_free(), 1);
  EXPECT_EQ(cache.Allocate(), a);
  EXPECT_DEATH(
      {
        cache.Release(b);
        cache.Release(b);
      },
      "references");
}

}  // namespace
}  // namespace orrery::rollout

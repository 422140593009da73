// The engine's promises to who submits: every response ends exactly once, whatever happens.
#include "rollout/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "tests/fakes/collector.h"
#include "tests/fakes/fake_codec.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::rollout {
namespace {

using fakes::Collector;

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    store_ = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
    options_.scheduler.max_positions = store_->spec().max_positions;
    options_.kv_blocks = 64;
  }
  void MakeEngine() { engine_ = std::make_unique<Engine>(store_.get(), &codec_, options_); }

  static GenerationRequest Request(int64_t prompt, size_t n, int64_t max_new_tokens) {
    GenerationRequest request;
    for (int64_t i = 0; i < prompt; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>(3 + i % 90));
    }
    for (size_t i = 0; i < n; ++i) request.seeds.push_back(100 + i);
    request.sampling.max_new_tokens = max_new_tokens;
    return request;
  }
  std::vector<Generation> Generate(const GenerationRequest& request) {
    if (engine_ == nullptr) MakeEngine();
    Collector collector;
    engine_->Submit(request, collector.Expect(0, std::max<size_t>(1, request.seeds.size())));
    collector.Wait();
    return collector.Of(0);
  }
  void ExpectRejected(const GenerationRequest& request, const std::string& why) {
    for (const Generation& g : Generate(request)) {
      EXPECT_EQ(g.finish_reason, FinishReason::kRejected);
      EXPECT_NE(g.error.find(why), std::string::npos) << g.error;
      EXPECT_TRUE(g.token_ids.empty());
    }
  }

  std::unique_ptr<model::WeightStore> store_;
  fakes::FakeCodec codec_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, RejectsWhatCannotBeServed) {
  ExpectRejected(Request(0, 2, 8), "no tokens");
  ExpectRejected(Request(5, 0, 8), "no responses");
  ExpectRejected(Request(128, 2, 8), "context");
  ExpectRejected(Request(5, 1, 0), "max_new_tokens");
  GenerationRequest foreign = Request(5, 2, 8);
  foreign.prompt_ids[3] = 96;
  ExpectRejected(foreign, "token id 96");
  foreign.prompt_ids[3] = -1;
  ExpectRejected(foreign, "token id -1");
  // The engine goes on.
  EXPECT_EQ(Generate(Request(5, 1, 8))[0].token_ids.size(), 8u);
}

TEST_F(EngineTest, RejectsWhatDoesNotFitTheCache) {
  options_.kv_blocks = 3;
  ExpectRejected(Request(17, 2, 20), "kv_tokens");
  EXPECT_EQ(Generate(Request(17, 2, 15))[1].token_ids.size(), 15u);
}

TEST_F(EngineTest, RejectsStopStringsWithoutATokenizer) {
  engine_ = std::make_unique<Engine>(store_.get(), nullptr, options_);
  GenerationRequest request = Request(5, 1, 8);
  request.sampling.stop = {"x"};
  ExpectRejected(request, "stop_token_ids");
}

TEST_F(EngineTest, ContextEndsAResponse) {
  for (const Generation& g : Generate(Request(120, 3, 100))) {
    EXPECT_EQ(g.finish_reason, FinishReason::kLength);
    EXPECT_EQ(g.token_ids.size(), 8u);
  }
  EXPECT_EQ(Generate(Request(127, 1, 100))[0].token_ids.size(), 1u);
}

TEST_F(EngineTest, NoStopTokenBeforeMinNewTokens) {
  GenerationRequest request = Request(6, 32, 64);
  for (int32_t id = 0; id < 48; ++id) request.sampling.stop_token_ids.push_back(id);
  request.sampling.stop_token_ids.push_back(5000);  // beyond the vocabulary: never drawn
  request.sampling.min_new_tokens = 6;
  for (const bool greedy : {false, true}) {
    request.sampling.temperature = greedy ? 0 : 1;
    for (const Generation& g : Generate(request)) {
      // The likeliest token may be one that never stops.
      if (greedy && g.finish_reason == FinishReason::kLength) continue;
      ASSERT_EQ(g.finish_reason, FinishReason::kStop);
      ASSERT_GE(g.token_ids.size(), 7u);
      for (size_t i = 0; i + 1 < g.token_ids.size(); ++i) EXPECT_GE(g.token_ids[i], 48);
      EXPECT_LT(g.token_ids.back(), 48);
    }
  }
}

TEST_F(EngineTest, StopStringEndsWithTheTokenThatCompletesIt) {
  GenerationRequest request = Request(6, 24, 100);
  const std::vector<Generation> free_running = Generate(request);
  // Two letters that follow one another somewhere in the first response.
  const std::string text = codec_.Decode(free_running[0].token_ids, false);
  const std::string stop = text.substr(40, 2);
  request.sampling.stop = {"never this", stop};
  size_t stopped = 0;
  const std::vector<Generation> generations = Generate(request);
  for (size_t i = 0; i < generations.size(); ++i) {
    const Generation& g = generations[i];
    const std::string got = codec_.Decode(g.token_ids, false);
    EXPECT_EQ(codec_.Decode(free_running[i].token_ids, false).substr(0, got.size()), got);
    if (g.finish_reason != FinishReason::kStop) continue;
    ++stopped;
    EXPECT_EQ(got.find(stop), got.size() - stop.size()) << got;
  }
  EXPECT_GT(stopped, 0u);
}

TEST_F(EngineTest, StopStringCompletedBeforeMinNewTokensDoesNotCount) {
  GenerationRequest request = Request(6, 1, 60);
  const std::string text = codec_.Decode(Generate(request)[0].token_ids, false);
  request.sampling.stop = {text.substr(9, 2)};
  size_t second = text.find(request.sampling.stop[0], 11);
  if (second == std::string::npos) second = text.size() - 2;
  request.sampling.min_new_tokens = 12;
  EXPECT_EQ(codec_.Decode(Generate(request)[0].token_ids, false), text.substr(0, second + 2));
}

TEST_F(EngineTest, AbortGivesWhatThereIsOnce) {
  options_.scheduler.max_running = 4;
  MakeEngine();
  engine_->Pause();
  Collector aborted, other;
  const GenerationRequest request = Request(20, 6, 100);
  RequestId id = 0;
  const auto on_other = other.Expect(0, 1);
  // Its last token is the moment of the abort: between two passes.
  engine_->Submit(Request(9, 1, 30), [&](size_t index, Generation g) {
    engine_->Abort(id);
    engine_->Abort(id);
    engine_->Abort(12345);
    on_other(index, std::move(g));
  });
  id = engine_->Submit(request, aborted.Expect(0, 6));
  engine_->Resume();
  aborted.Wait();
  other.Wait();
  size_t running = 0;
  for (const Generation& g : aborted.Of(0)) {
    EXPECT_EQ(g.finish_reason, FinishReason::kAborted);
    EXPECT_EQ(g.logprobs.size(), g.token_ids.size());
    EXPECT_EQ(g.versions.size(), g.token_ids.size());
    EXPECT_GE(g.token_ids.size(), 1u);
    EXPECT_LE(g.token_ids.size(), 31u);
    running += g.token_ids.size() > 20;
  }
  EXPECT_EQ(running, 3u);  // the others waited for their turn
  EXPECT_EQ(other.Of(0)[0].token_ids.size(), 30u);
  // What was sampled before is what would have been sampled.
  const std::vector<Generation> whole = Generate(request);
  const std::vector<Generation> parts = aborted.Of(0);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(std::equal(parts[i].token_ids.begin(), parts[i].token_ids.end(),
                           whole[i].token_ids.begin()));
  }
}

TEST_F(EngineTest, AbortBeforeItRan) {
  MakeEngine();
  engine_->Pause();
  Collector collector;
  engine_->Abort(engine_->Submit(Request(20, 3, 100), collector.Expect(0, 3)));
  engine_->Resume();
  collector.Wait();
  for (const Generation& g : collector.Of(0)) {
    EXPECT_EQ(g.finish_reason, FinishReason::kAborted);
    EXPECT_TRUE(g.token_ids.empty());
  }
}

TEST_F(EngineTest, DestructionDeliversEverything) {
  for (const bool paused : {false, true}) {
    MakeEngine();
    Collector collector;
    if (paused) engine_->Pause();
    for (size_t i = 0; i < 5; ++i) engine_->Submit(Request(30, 4, 90), collector.Expect(i, 4));
    engine_.reset();
    EXPECT_EQ(collector.missing(), 0u);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(collector.Of(i).size(), 4u);
  }
}

TEST_F(EngineTest, WhatACallbackSubmitsWhileTheEngineEndsIsDeliveredToo) {
  MakeEngine();
  engine_->Pause();
  std::atomic<int> delivered = 0;
  Engine* engine = engine_.get();
  engine_->Submit(Request(5, 1, 50), [&, engine](size_t, Generation) {
    ++delivered;
    engine->Submit(Request(5, 2, 50), [&](size_t, Generation g) {
      EXPECT_EQ(g.finish_reason, FinishReason::kAborted);
      ++delivered;
    });
  });
  engine_.reset();
  EXPECT_EQ(delivered, 3);
}

TEST_F(EngineTest, CallbacksMaySubmitAndAbort) {
  MakeEngine();
  Collector second;
  const auto on_second = second.Expect(0, 2);
  engine_->Submit(Request(5, 1, 4), [&](size_t, Generation) {
    engine_->Abort(engine_->Submit(Request(5, 2, 100), on_second));
  });
  second.Wait();
  for (const Generation& g : second.Of(0)) EXPECT_EQ(g.finish_reason, FinishReason::kAborted);
}

TEST_F(EngineTest, NothingRunsWhilePaused) {
  MakeEngine();
  Collector collector;
  engine_->Submit(Request(5, 4, 100), collector.Expect(0, 4));
  engine_->Pause();
  const int64_t steps = engine_->stats().steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(engine_->stats().steps, steps);
  engine_->Pause();  // pauses are counted
  engine_->Resume();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(engine_->stats().steps, steps);
  engine_->Resume();
  collector.Wait();
}

TEST_F(EngineTest, EveryTokenSaysWhichWeightsItCameFrom) {
  MakeEngine();
  engine_->Pause();
  Collector collector;
  const auto update = [&](PolicyVersion version) {
    ASSERT_TRUE(engine_->BeginUpdate(version).ok());
    EXPECT_FALSE(engine_->BeginUpdate(version + 1).ok());
    store_->BeginUpdate();
    EXPECT_FALSE(engine_->Commit(version).ok()) << "half written";
    store_->Randomise(version);
    store_->Commit(version);
    EXPECT_FALSE(engine_->Commit(version + 7).ok()) << "another version";
    ASSERT_TRUE(engine_->Commit(version).ok());
    EXPECT_FALSE(engine_->Commit(version).ok()) << "committed already";
    EXPECT_EQ(engine_->version(), version);
  };
  // The ends of two short responses are the moments of the updates.
  for (const PolicyVersion version : {1, 2}) {
    const auto done = collector.Expect(version, 1);
    engine_->Submit(Request(5, 1, 20 * static_cast<int64_t>(version)),
                    [&, version, done](size_t index, Generation g) {
                      update(version);
                      done(index, std::move(g));
                    });
  }
  engine_->Submit(Request(20, 4, 100), collector.Expect(0, 4));
  engine_->Resume();
  collector.Wait();
  for (const Generation& g : collector.Of(0)) {
    ASSERT_EQ(g.versions.size(), 100u);
    EXPECT_TRUE(std::is_sorted(g.versions.begin(), g.versions.end()));
    for (const PolicyVersion version : {0, 1}) {
      EXPECT_EQ(std::count(g.versions.begin(), g.versions.end(), version), 20) << version;
    }
    EXPECT_EQ(g.versions.back(), 2u);
  }
}

TEST_F(EngineTest, BrokenWeightsAreRefusedAndForgotten) {
  const GenerationRequest request = Request(20, 4, 20);
  const std::vector<Generation> expected = Generate(request);
  std::vector<float> good(static_cast<size_t>(store_->layout().num_elements));
  store_->CopyTo(good);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    fakes::Poke(store_.get(), store_->layout().layers[0].qkv, 70, value);
    for (const Generation& g : Generate(request)) {
      EXPECT_EQ(g.finish_reason, FinishReason::kRejected);
      EXPECT_NE(g.error.find("not finite"), std::string::npos) << g.error;
    }
    // NaN keys and values left in the cache do not reach a later response.
    store_->BeginUpdate();
    store_->Assign(good);
    store_->Commit(store_->version() + 1);
    const std::vector<Generation> again = Generate(request);
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].token_ids, expected[i].token_ids);
      EXPECT_EQ(again[i].logprobs, expected[i].logprobs);
    }
  }
}

TEST_F(EngineTest, StatsCountTokens) {
  Generate(Request(33, 4, 10));
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompt_tokens, 33);
  EXPECT_EQ(stats.shared_tokens, 99);
  EXPECT_EQ(stats.generated_tokens, 40);
  EXPECT_EQ(stats.kv_blocks, 64);
  EXPECT_EQ(stats.peak_running, 4);
  EXPECT_GE(stats.peak_kv_blocks, 3 + 4);
}

TEST_F(EngineTest, ManyThreadsMaySubmit) {
  options_.kv_blocks = 20;
  MakeEngine();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Collector collector;
      for (size_t i = 0; i < 6; ++i) {
        const RequestId id = engine_->Submit(Request(1 + 7 * t, 3, 20), collector.Expect(i, 3));
        if (i % 3 == 2) engine_->Abort(id);
      }
      collector.Wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace orrery::rollout

// What the engine records of routing: of every position the first computation, whatever was
// computed again, in which pieces, and with how many passes in flight.
#include <gtest/gtest.h>

#include <map>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/made_up_executor.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::rollout {
namespace {

constexpr int64_t kTokenBytes = 4;  // two layers with experts of three, top 2

// Tokens are made up, and so are experts: of a row its position (two bytes), how often that
// position of that prompt or response was computed before, and 1 + the response it belongs to.
class RecordingExecutor : public fakes::MadeUpExecutor {
 public:
  RecordingExecutor(int depth, int64_t blocks) : MadeUpExecutor(depth, blocks) {
    spec_.num_layers = 3;
    spec_.is_moe_layer = {1, 0, 1};
    spec_.num_experts = 256;
    spec_.experts_per_token = 2;
  }

  void Launch(std::span<const Work> pass, std::span<const Draw> draws, const Copies&) override {
    PassResult result;
    for (const Work& w : pass) {
      const int64_t response = w.response == nullptr ? -1 : static_cast<int64_t>(w.response->index);
      for (int64_t p = w.first_position; p < w.first_position + w.count; ++p) {
        const int computed = computed_[{w.request->id, response, p}]++;
        again_ += computed > 0;
        for (const int64_t byte : {p % 256, p / 256, int64_t{computed}, response + 1}) {
          result.routed_experts.push_back(static_cast<uint8_t>(byte));
        }
      }
    }
    Finish(draws, std::move(result));
  }
  // Rows that had been computed before.
  int64_t again() const { return again_; }

 private:
  std::map<std::tuple<RequestId, int64_t, int64_t>, int> computed_;
  int64_t again_ = 0;
};

void ExpectFirstComputations(const Generation& g, size_t index, int64_t prompt_size) {
  const RoutedExperts& r = g.routed_experts;
  ASSERT_EQ(r.num_layers, 2);
  ASSERT_EQ(r.top_k, 2);
  ASSERT_EQ(r.id_bytes, 1);
  ASSERT_EQ(r.token_bytes(), kTokenBytes);
  ASSERT_EQ(r.num_positions(), prompt_size + static_cast<int64_t>(g.token_ids.size()) - 1);
  ASSERT_EQ(r.prompt_bytes(), prompt_size * kTokenBytes);
  for (int64_t p = 0; p < r.num_positions(); ++p) {
    const uint8_t* at = r.At(p);
    ASSERT_EQ(at[0] + 256 * at[1], p);
    ASSERT_EQ(at[2], 0) << "position " << p << " is of a later computation";
    ASSERT_EQ(at[3], p < prompt_size ? 0 : index + 1) << "position " << p;
  }
}

TEST(RoutedExpertsTest, AreThoseOfTheFirstComputation) {
  int64_t preemptions = 0, again = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (const int64_t blocks : {16, 24, 200}) {
      for (const int depth : {1, 2}) {
        SchedulerLimits limits;
        limits.max_running = 10;
        limits.prefill_chunk_tokens = 1 + static_cast<int64_t>(HashSeed({seed, 9}) % 40);
        limits.max_positions = 200;
        fakes::Collector collector;
        auto executor = std::make_unique<RecordingExecutor>(depth, blocks);
        const RecordingExecutor& recorded = *executor;
        std::vector<int64_t> sizes;
        Engine engine(std::move(executor), nullptr, limits);
        for (uint64_t i = 0; i < 16; ++i) {
          GenerationRequest request;
          request.prompt_ids.assign(1 + HashSeed({seed, i, 1}) % 70, 3);
          sizes.push_back(static_cast<int64_t>(request.prompt_ids.size()));
          for (uint64_t n = 0; n <= HashSeed({seed, i, 2}) % 4; ++n) {
            request.seeds.push_back(HashSeed({seed, i, n, 3}));
          }
          request.sampling.max_new_tokens = 1 + static_cast<int64_t>(HashSeed({seed, i, 4}) % 60);
          request.sampling.stop_token_ids = {7};
          request.return_routed_experts = i % 4 != 3;  // not everybody asks
          const size_t n = request.seeds.size();
          engine.Submit(std::move(request), collector.Expect(i, n));
        }
        collector.Wait();
        preemptions += engine.stats().preemptions;
        again += recorded.again();
        for (uint64_t i = 0; i < 16; ++i) {
          const std::vector<Generation> responses = collector.Of(i);
          for (size_t n = 0; n < responses.size(); ++n) {
            if (i % 4 == 3) {
              EXPECT_EQ(responses[n].routed_experts.num_bytes(), 0);
              continue;
            }
            ASSERT_NO_FATAL_FAILURE(ExpectFirstComputations(responses[n], n, sizes[i]));
            // One memory for the prompt of a group.
            EXPECT_EQ(responses[n].routed_experts.prompt, responses[0].routed_experts.prompt);
          }
        }
      }
    }
  }
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(again, 1000) << "nothing was computed again: the test saw nothing";
}

TEST(RoutedExpertsTest, AnAbortGivesWhatThereIs) {
  for (const int depth : {1, 2}) {
    SchedulerLimits limits;
    limits.max_positions = 100000;
    fakes::Collector collector;
    Engine engine(std::make_unique<RecordingExecutor>(depth, 9000), nullptr, limits);
    GenerationRequest request;
    request.prompt_ids = {1, 2, 3};
    request.seeds = {1, 2, 3};
    request.sampling.max_new_tokens = 30000;
    request.return_routed_experts = true;
    const RequestId id = engine.Submit(std::move(request), collector.Expect(0, 3));
    while (engine.stats().steps < 50) std::this_thread::yield();
    engine.Abort(id);
    collector.Wait();
    for (const Generation& g : collector.Of(0)) {
      const RoutedExperts& r = g.routed_experts;
      ASSERT_FALSE(g.token_ids.empty());
      EXPECT_EQ(r.num_positions(), 3 + static_cast<int64_t>(g.token_ids.size()) - 1);
    }
  }
}

TEST(RoutedExpertsTest, AModelWithoutExpertsRefuses) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  EngineOptions options;
  options.scheduler.max_positions = store->spec().max_positions;
  options.kv_blocks = 16;
  fakes::Collector collector;
  Engine engine(store.get(), nullptr, options);
  GenerationRequest request;
  request.prompt_ids = {1, 2};
  request.seeds = {1};
  request.return_routed_experts = true;
  engine.Submit(request, collector.Expect(0, 1));
  collector.Wait();
  const Generation g = collector.Of(0)[0];
  EXPECT_EQ(g.finish_reason, FinishReason::kRejected);
  EXPECT_NE(g.error.find("without experts"), std::string::npos) << g.error;
}

}  // namespace
}  // namespace orrery::rollout

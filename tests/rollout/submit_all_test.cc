// Requests that are submitted together are seen together: what the first pass holds, in which order
// requests run, and that results are those of requests submitted one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"

namespace orrery::rollout {
namespace {

constexpr int64_t kPromptTokens = 20;

// Of each pass which prompts it computed, and how far.
struct Passes {
  using Rows = std::vector<std::pair<RequestId, int64_t>>;  // request, rows of its prompt

  std::mutex mutex;
  std::vector<Rows> prompts;

  Rows Of(size_t pass) {
    std::lock_guard lock(mutex);
    return prompts.at(pass);
  }
};

// Draws token hash(seed, index of the token) % 50.
class RecordingExecutor : public PassExecutor {
 public:
  RecordingExecutor(Passes* passes, int64_t blocks) : passes_(*passes), pool_(blocks) {
    spec_.vocab_size = 50;
  }
  const model::ModelSpec& spec() const override { return spec_; }
  BlockPool* pool() override { return &pool_; }
  PolicyVersion version() const override { return 1; }
  absl::Status TakeWeights(PolicyVersion) override { return absl::OkStatus(); }
  absl::Status Admit(const GenerationRequest&) const override { return absl::OkStatus(); }
  int depth() const override { return 1; }

  void Launch(std::span<const Work> pass, std::span<const Draw> draws, const Copies&) override {
    Passes::Rows rows;
    for (const Work& w : pass) {
      if (w.response == nullptr) rows.emplace_back(w.request->id, w.count);
    }
    for (const Draw& d : draws) {
      kernels::SampleResult result;
      const uint64_t seed = d.request->what.seeds[d.response->index];
      result.token_id =
          static_cast<int32_t>(HashSeed({seed, d.response->generation.token_ids.size()}) % 50);
      result_.samples.push_back(result);
    }
    std::lock_guard lock(passes_.mutex);
    passes_.prompts.push_back(std::move(rows));
  }
  PassResult Collect() override { return std::exchange(result_, {}); }

 private:
  Passes& passes_;
  model::ModelSpec spec_;
  BlockPool pool_;
  PassResult result_;
};

SchedulerLimits Limits(int64_t chunk_tokens) {
  SchedulerLimits limits;
  limits.prefill_chunk_tokens = chunk_tokens;
  limits.max_positions = 200;
  return limits;
}

std::vector<RolloutEngine::Submission> Submissions(size_t count, fakes::Collector* collector) {
  std::vector<RolloutEngine::Submission> all;
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest request;
    request.prompt_ids.assign(kPromptTokens, 3);
    request.seeds = {HashSeed({i, 1}), HashSeed({i, 2})};
    request.sampling.max_new_tokens = 5;
    all.push_back({std::move(request), collector->Expect(i, 2)});
  }
  return all;
}

TEST(SubmitAllTest, TheFirstPassHoldsAllPrompts) {
  Passes passes;
  fakes::Collector collector;
  Engine engine(std::make_unique<RecordingExecutor>(&passes, 1000), nullptr, Limits(1 << 20));
  const std::vector<RequestId> ids = engine.SubmitAll(Submissions(64, &collector));
  collector.Wait();
  Passes::Rows expected;
  for (const RequestId id : ids) expected.emplace_back(id, kPromptTokens);
  EXPECT_EQ(expected.size(), 64u);
  EXPECT_EQ(passes.Of(0), expected);
}

TEST(SubmitAllTest, OrAllThatFitAndTheNextGoesOn) {
  Passes passes;
  fakes::Collector collector;
  Engine engine(std::make_unique<RecordingExecutor>(&passes, 1000), nullptr, Limits(50));
  const std::vector<RequestId> ids = engine.SubmitAll(Submissions(6, &collector));
  collector.Wait();
  EXPECT_EQ(passes.Of(0), (Passes::Rows{{ids[0], 20}, {ids[1], 20}, {ids[2], 10}}));
  EXPECT_EQ(passes.Of(1).front(), (std::pair{ids[2], int64_t{10}}));
}

TEST(SubmitAllTest, ResultsAreThoseOfRequestsSubmittedOneByOne) {
  Passes passes;
  fakes::Collector together, alone;
  {
    Engine engine(std::make_unique<RecordingExecutor>(&passes, 40), nullptr, Limits(50));
    engine.SubmitAll(Submissions(30, &together));
    for (auto& s : Submissions(30, &alone)) {
      engine.Submit(std::move(s.request), std::move(s.on_done));
    }
    together.Wait();
    alone.Wait();
  }
  for (size_t i = 0; i < 30; ++i) {
    for (size_t n = 0; n < 2; ++n) {
      EXPECT_EQ(together.Of(i)[n].token_ids, alone.Of(i)[n].token_ids);
      EXPECT_EQ(together.Of(i)[n].token_ids.size(), 5u);
    }
  }
}

TEST(SubmitAllTest, ARefusedOneLeavesTheOthers) {
  Passes passes;
  fakes::Collector collector;
  Engine engine(std::make_unique<RecordingExecutor>(&passes, 1000), nullptr, Limits(1 << 20));
  std::vector<RolloutEngine::Submission> all = Submissions(3, &collector);
  all[1].request.prompt_ids[4] = 50;  // not in the vocabulary
  const std::vector<RequestId> ids = engine.SubmitAll(std::move(all));
  collector.Wait();
  EXPECT_EQ(passes.Of(0), (Passes::Rows{{ids[0], kPromptTokens}, {ids[2], kPromptTokens}}));
  EXPECT_EQ(collector.Of(1)[0].finish_reason, FinishReason::kRejected);
  EXPECT_EQ(collector.Of(2)[1].finish_reason, FinishReason::kLength);
}

TEST(SubmitAllTest, NothingIsFineAndIdsGrow) {
  Passes passes;
  fakes::Collector collector;
  Engine engine(std::make_unique<RecordingExecutor>(&passes, 1000), nullptr, Limits(1 << 20));
  EXPECT_TRUE(engine.SubmitAll({}).empty());
  const std::vector<RequestId> ids = engine.SubmitAll(Submissions(5, &collector));
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  collector.Wait();
}

}  // namespace
}  // namespace orrery::rollout

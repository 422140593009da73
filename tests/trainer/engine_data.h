// What the engine samples, as the trainer takes it: shared by the tests of the two together.
#pragma once

#include <bit>
#include <numeric>

#include "orchestrator/base/hash.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/tiny_models.h"

namespace orrery::trainer {

using Generations = std::vector<std::vector<Generation>>;

inline SamplingOptions Sampling(float temperature, int64_t max_new_tokens) {
  SamplingOptions sampling;
  sampling.temperature = temperature;
  sampling.max_new_tokens = max_new_tokens;
  sampling.stop_token_ids = {2, 5};
  return sampling;
}

// One request a length, 4 to 8 responses each.
inline std::vector<GenerationRequest> MakeRequests(const model::ModelSpec& spec,
                                                   const SamplingOptions& sampling,
                                                   const std::vector<int64_t>& lengths) {
  std::vector<GenerationRequest> requests;
  RandomStream random(17);
  for (size_t r = 0; r < lengths.size(); ++r) {
    GenerationRequest request;
    for (int64_t i = 0; i < lengths[r]; ++i) {
      request.prompt_ids.push_back(
          static_cast<int32_t>(random.Uniform() * static_cast<double>(spec.vocab_size)));
    }
    request.sampling = sampling;
    for (size_t i = 0; i < 4 + r % 5; ++i) request.seeds.push_back(HashSeed({r, i}));
    requests.push_back(std::move(request));
  }
  return requests;
}

inline rollout::EngineOptions Options(const model::ModelSpec& spec) {
  rollout::EngineOptions options;
  options.scheduler.max_positions = spec.max_positions;
  options.kv_blocks = 512;
  return options;
}

enum class Arrival { kTogether, kOneByOne, kBackwards };

inline Generations Generate(const model::WeightStore& store, const rollout::EngineOptions& options,
                            const std::vector<GenerationRequest>& requests,
                            Arrival arrival = Arrival::kTogether, EngineStats* stats = nullptr) {
  fakes::Collector collector;
  rollout::Engine engine(&store, nullptr, options);
  if (arrival != Arrival::kOneByOne) engine.Pause();
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t r = arrival == Arrival::kBackwards ? requests.size() - 1 - i : i;
    engine.Submit(requests[r], collector.Expect(r, requests[r].seeds.size()));
    if (arrival == Arrival::kOneByOne) collector.Wait();
  }
  if (arrival != Arrival::kOneByOne) engine.Resume();
  collector.Wait();
  if (stats != nullptr) *stats = engine.stats();
  Generations out;
  for (size_t r = 0; r < requests.size(); ++r) out.push_back(collector.Of(r));
  return out;
}

// Bitwise.
inline void ExpectSame(const std::vector<float>& a, const std::vector<float>& b,
                       const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ": element " << i << ": " << a[i] << " against " << b[i];
  }
}

inline void ExpectSame(const Generations& a, const Generations& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    ASSERT_EQ(a[r].size(), b[r].size());
    for (size_t i = 0; i < a[r].size(); ++i) {
      const std::string where =
          what + ", request " + std::to_string(r) + " response " + std::to_string(i);
      ASSERT_EQ(a[r][i].token_ids, b[r][i].token_ids) << where;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(a[r][i].logprobs, b[r][i].logprobs, where));
      EXPECT_EQ(a[r][i].finish_reason, b[r][i].finish_reason) << where;
      EXPECT_EQ(a[r][i].entropy_sum, b[r][i].entropy_sum) << where;
    }
  }
}

// One training sequence a response; groups are requests.
inline std::vector<TrainingSequence> ToSequences(const std::vector<GenerationRequest>& requests,
                                                 const Generations& generations) {
  std::vector<TrainingSequence> out;
  for (size_t r = 0; r < requests.size(); ++r) {
    for (size_t i = 0; i < generations[r].size(); ++i) {
      const Generation& g = generations[r][i];
      const size_t prompt = requests[r].prompt_ids.size();
      TrainingSequence s;
      s.episode_id = out.size();
      s.group_id = r;
      s.shared_prefix = static_cast<int32_t>(prompt);
      s.token_ids = requests[r].prompt_ids;
      s.token_ids.insert(s.token_ids.end(), g.token_ids.begin(), g.token_ids.end());
      s.loss_mask.assign(s.token_ids.size(), 0);
      std::fill(s.loss_mask.begin() + static_cast<int64_t>(prompt), s.loss_mask.end(), 1);
      s.rollout_logprobs.assign(prompt, 0.0f);
      s.rollout_logprobs.insert(s.rollout_logprobs.end(), g.logprobs.begin(), g.logprobs.end());
      const float advantage = static_cast<float>(i % 3) - 1.25f;  // never all 0
      s.advantages.assign(s.token_ids.size(), advantage);
      s.episode_tokens = static_cast<int64_t>(g.token_ids.size());
      out.push_back(std::move(s));
    }
  }
  return out;
}

inline TrainingBatch ToBatch(std::vector<TrainingSequence> sequences) {
  TrainingBatch batch;
  batch.num_episodes = static_cast<int64_t>(sequences.size());
  for (const TrainingSequence& s : sequences) batch.num_trained_tokens += s.episode_tokens;
  batch.sequences = std::move(sequences);
  return batch;
}

}  // namespace orrery::trainer

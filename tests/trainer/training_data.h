// Made-up training sequences: groups of responses to shared prompts.
#pragma once

#include "orchestrator/base/hash.h"
#include "orchestrator/types.h"

namespace orrery::trainer {

inline TrainingBatch MakeBatch(int64_t vocabulary, uint64_t seed, size_t groups = 5,
                               size_t per_group = 4) {
  RandomStream random(HashSeed({seed}));
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random.Uniform() * static_cast<double>(high - low + 1));
  };
  TrainingBatch batch;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<int32_t> prompt;
    for (int64_t n = g == 0 ? 16 : pick(1, 40); n > 0; --n) {
      prompt.push_back(static_cast<int32_t>(pick(0, vocabulary - 1)));
    }
    for (size_t i = 0; i < per_group; ++i) {
      TrainingSequence s;
      s.episode_id = g * per_group + i;
      s.group_id = g;
      s.shared_prefix = static_cast<int32_t>(prompt.size());
      s.token_ids = prompt;
      s.loss_mask.assign(prompt.size(), 0);
      for (int64_t n = pick(1, 30); n > 0; --n) {
        s.token_ids.push_back(static_cast<int32_t>(pick(0, vocabulary - 1)));
        const bool trained = n == 1 || random.Uniform() < 0.9;  // a tool wrote some of it
        s.loss_mask.push_back(trained);
        s.episode_tokens += trained;
      }
      s.advantages.assign(s.token_ids.size(), static_cast<float>(random.Uniform() * 4 - 2));
      batch.num_trained_tokens += s.episode_tokens;
      batch.sequences.push_back(std::move(s));
    }
  }
  batch.num_episodes = static_cast<int64_t>(batch.sequences.size());
  return batch;
}

}  // namespace orrery::trainer

// A sequence that owns its arrays, for tests: filled by hand or at random from a seed.
#pragma once

#include <cmath>
#include <vector>

#include "orchestrator/base/hash.h"
#include "trainer/loss/sequence.h"

namespace orrery::trainer {

struct SequenceData {
  std::vector<float> logp, old_logp, rollout_logp, reference_logp, entropy, advantages;
  std::vector<uint8_t> mask;
  int64_t episode_tokens = 0;

  size_t size() const { return mask.size(); }
  int64_t num_trained() const {
    int64_t count = 0;
    for (const uint8_t m : mask) count += m;
    return count;
  }
  SequenceView view() const {
    return {logp,    old_logp,   rollout_logp, reference_logp,
            entropy, advantages, mask,         episode_tokens};
  }
  // A trained token; the others of its arrays follow the first.
  void Add(double log_ratio, double advantage, double old = -1.5, double mismatch = 0,
           double from_reference = 0, uint8_t m = 1) {
    old_logp.push_back(static_cast<float>(old));
    logp.push_back(static_cast<float>(old + log_ratio));
    rollout_logp.push_back(static_cast<float>(old - mismatch));
    reference_logp.push_back(static_cast<float>(old + log_ratio - from_reference));
    entropy.push_back(1.25f);
    advantages.push_back(static_cast<float>(advantage));
    mask.push_back(m);
    episode_tokens += m;
  }
};

// Every number a multiple of 2^-12 of small size: sums with a step of 2^-10 are exact in float, so
// finite differences are those of the double function behind.
inline double Dyadic(double x) { return std::round(x * 4096) / 4096; }

// About one position in four is not trained and holds NaN throughout.
inline SequenceData RandomSequence(uint64_t seed, size_t size, double spread = 0.4) {
  RandomStream random(seed);
  const auto around_zero = [&](double width) { return Dyadic(width * (2 * random.Uniform() - 1)); };
  SequenceData data;
  const double nan = std::nan("");
  for (size_t t = 0; t < size; ++t) {
    if (random.Below(4) == 0) {
      data.Add(nan, nan, nan, nan, nan, 0);
      data.entropy.back() = static_cast<float>(nan);
      continue;
    }
    data.Add(around_zero(spread), around_zero(2), -2 + around_zero(1), around_zero(1),
             around_zero(1));
    data.entropy.back() = static_cast<float>(1 + around_zero(1));
  }
  return data;
}

}  // namespace orrery::trainer

// What the tests of the samplers share: cases of every kind, the distribution that each must have,
// and the comparison of counted draws with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/sampler/sampler.h"

namespace orrery::kernels {

struct SamplerCase {
  SamplerParams params;
  std::vector<int32_t> prompt, generated, banned;
};

// The distribution that a draw must have, by the definition in sampler.h, in double.
inline std::vector<double> Exact(const std::vector<float>& logits, const SamplerCase& c) {
  const int64_t v = static_cast<int64_t>(logits.size());
  std::vector<double> z(logits.begin(), logits.end());
  std::set<int32_t> seen(c.prompt.begin(), c.prompt.end());
  seen.insert(c.generated.begin(), c.generated.end());
  const double r = c.params.repetition_penalty;
  if (r != 1) {
    for (const int32_t id : seen) z[id] = z[id] > 0 ? z[id] / r : z[id] * r;
  }
  for (const int32_t id : std::set<int32_t>(c.generated.begin(), c.generated.end())) {
    z[id] -= c.params.presence_penalty;
  }
  const std::set<int32_t> banned(c.banned.begin(), c.banned.end());
  double max = -1e300;
  for (int64_t i = 0; i < v; ++i) {
    if (banned.count(static_cast<int32_t>(i)) == 0) max = std::max(max, z[i]);
  }
  std::vector<double> p(v);
  for (int64_t i = 0; i < v; ++i) p[i] = std::exp((z[i] - max) / c.params.temperature);
  for (const int32_t id : banned) p[id] = 0;
  std::vector<int32_t> order(v);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[a] > p[b]; });
  int64_t keep = c.params.top_k > 0 ? std::min(v, c.params.top_k) : v;
  double total = 0, sum = 0;
  for (int64_t i = 0; i < keep; ++i) total += p[order[i]];
  for (int64_t i = 0; i < keep && c.params.top_p < 1; ++i) {
    sum += p[order[i]];
    if (sum >= c.params.top_p * total) keep = i + 1;
  }
  while (keep > 1 && p[order[keep - 1]] < c.params.min_p * p[order[0]]) --keep;
  for (int64_t i = keep; i < v; ++i) p[order[i]] = 0;
  const double kept = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= kept;
  return p;
}

// Pearson's statistic over ids that are expected 5 times or more, the others as one.
inline void ExpectCountsFollow(const std::vector<double>& p,
                               const std::map<int32_t, int64_t>& counts, int64_t draws) {
  double chi = 0, rest = 0, rest_count = 0;
  int64_t cells = 0;
  const auto add = [&](double expected, double count) {
    chi += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    const auto found = counts.find(static_cast<int32_t>(i));
    const double count = found == counts.end() ? 0 : static_cast<double>(found->second);
    const double expected = p[i] * static_cast<double>(draws);
    if (p[i] == 0) {
      EXPECT_EQ(count, 0) << "id " << i;
    } else if (expected < 5) {
      rest += expected, rest_count += count;
    } else {
      add(expected, count);
    }
  }
  if (rest > 1) add(rest, rest_count);
  // Mean cells - 1, variance twice that; six standard deviations.
  const double freedom = static_cast<double>(std::max<int64_t>(cells - 1, 1));
  EXPECT_LT(chi, freedom + 6 * std::sqrt(2 * freedom) + 6) << cells << " cells";
}

// Cases that use everything, over ids below 40.
inline std::vector<SamplerCase> SamplerCases() {
  std::vector<SamplerCase> cases(10);
  cases[1].params.temperature = 0.6f;
  cases[2].params.top_k = 7;
  cases[3].params.top_p = 0.8f;
  cases[4].params.min_p = 0.1f;
  cases[5].params.repetition_penalty = 1.7f;
  cases[5].prompt = {0, 1, 2, 3, 3, 3};
  cases[5].generated = {3, 4, 5};
  cases[6].params.presence_penalty = 1.5f;
  cases[6].prompt = {0, 1};  // not counted
  cases[6].generated = {7, 7, 8, 9};
  cases[7].banned = {3, 9, 20, 39};
  cases[8].params = {0.8f, 20, 0.9f, 0.02f, 1.2f, 0.3f};
  cases[8].prompt = {1, 2};
  cases[8].generated = {5, 6, 6};
  cases[8].banned = {11};
  cases[9].params.temperature = 1.5f;
  cases[9].params.top_k = 12;
  cases[9].params.top_p = 0.7f;
  return cases;
}

}  // namespace orrery::kernels

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/head/log_softmax.h"
#include "kernels/sampler/top_logprobs.h"
#include "orchestrator/base/check.h"

namespace orrery::kernels {
namespace {

// Ids of the n largest, ties to the lower id.
std::vector<int32_t> LargestFirst(std::span<const float> logits, int64_t n) {
  CHECK(n >= 1 && n <= kMaxTopLogprobs && n <= static_cast<int64_t>(logits.size())) << n;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.resize(static_cast<size_t>(n));
  return ids;
}

}  // namespace

void TopLogprobs(std::span<const float> logits, float temperature, int64_t n, TopLogprob* out) {
  const float inverse = temperature > 0 ? 1 / temperature : 1;
  const LogSoftmaxStats stats =
      LogSoftmax(logits.data(), static_cast<int64_t>(logits.size()), inverse, nullptr);
  for (const int32_t id : LargestFirst(logits, n))
    *out++ = {id, stats.Logprob(logits[id], inverse)};
}

void TopLogprobsReference(std::span<const float> logits, double temperature, int64_t n,
                          int32_t* token_ids, double* logprobs) {
  std::vector<double> all(logits.size());
  LogSoftmaxReference(logits.data(), static_cast<int64_t>(logits.size()),
                      temperature > 0 ? 1 / temperature : 1, all.data());
  // One by one, by the definition.
  std::vector<bool> taken(logits.size());
  for (int64_t k = 0; k < n; ++k) {
    int64_t best = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!taken[i] && (best < 0 || logits[i] > logits[static_cast<size_t>(best)])) {
        best = static_cast<int64_t>(i);
      }
    }
    taken[static_cast<size_t>(best)] = true;
    token_ids[k] = static_cast<int32_t>(best);
    logprobs[k] = all[static_cast<size_t>(best)];
  }
}

}  // namespace orrery::kernels

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/head/log_softmax.h"
#include "kernels/sampler/sampler.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"

namespace orrery::kernels {
namespace {

double Uniform(uint64_t seed, uint64_t position) {
  return static_cast<double>(HashSeed({seed, position}) >> 11) * 0x1.0p-53;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void Penalise(const SamplerInput& input, const SamplerParams& params, std::vector<float>* logits) {
  std::vector<uint8_t> seen(logits->size(), 0);
  const auto repeat = [&](int32_t id) {
    if (seen[id]) return;
    seen[id] = 1;
    float& logit = (*logits)[id];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  };
  if (params.repetition_penalty != 1) {
    for (const int32_t id : input.prompt_ids) repeat(id);
    for (const int32_t id : input.generated_ids) repeat(id);
  }
  if (params.presence_penalty != 0) {
    std::fill(seen.begin(), seen.end(), 0);
    for (const int32_t id : input.generated_ids) {
      if (!seen[id]) (*logits)[id] -= params.presence_penalty;
      seen[id] = 1;
    }
  }
}

void Ban(const SamplerInput& input, float value, std::vector<float>* to) {
  for (const int32_t id : input.banned_ids) {
    // A stop id that the model does not have cannot be drawn anyway.
    if (id >= 0 && static_cast<size_t>(id) < to->size()) (*to)[id] = value;
  }
}

// Inverse of the cumulative distribution over weights in id order. Sums of 256 first: fast to find
// the place, and in double, so that the last id is never drawn by rounding alone.
int32_t DrawInOrder(std::span<const float> weights, double uniform) {
  constexpr size_t kChunk = 256;
  constexpr size_t kTogether = 4;  // chunks summed side by side: one chain of additions waits
  const size_t chunks = (weights.size() + kChunk - 1) / kChunk;
  static thread_local std::vector<double> sums;
  sums.assign(chunks, 0.0);
  size_t c = 0;
  for (; (c + kTogether) * kChunk <= weights.size(); c += kTogether) {
    double sum[kTogether] = {};
    const float* from = weights.data() + c * kChunk;
    for (size_t i = 0; i < kChunk; ++i) {
      for (size_t k = 0; k < kTogether; ++k) sum[k] += from[k * kChunk + i];
    }
    std::copy_n(sum, kTogether, sums.begin() + static_cast<std::ptrdiff_t>(c));
  }
  for (size_t i = c * kChunk; i < weights.size(); ++i) sums[i / kChunk] += weights[i];
  double total = 0;
  for (const double sum : sums) total += sum;
  double left = uniform * total;
  size_t chunk = 0;
  while (chunk + 1 < sums.size() && left >= sums[chunk]) left -= sums[chunk++];
  int32_t last = -1;
  const size_t end = std::min(weights.size(), (chunk + 1) * kChunk);
  for (size_t i = chunk * kChunk; i < end; ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<int32_t>(i);
    if (left < weights[i]) return last;
    left -= weights[i];
  }
  if (last >= 0) return last;
  // Rounding carried past a chunk without weight: the last id that has any.
  for (size_t i = weights.size(); i-- > 0;) {
    if (weights[i] > 0) return static_cast<int32_t>(i);
  }
  return 0;
}

// Sets the weights that the filters leave out to 0.
void Filter(const SamplerParams& params, std::span<float> weights) {
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto heavier = [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  size_t keep = order.size();
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < keep) {
    keep = static_cast<size_t>(params.top_k);
    std::nth_element(order.begin(), order.begin() + keep, order.end(), heavier);
    order.resize(keep);
  }
  std::sort(order.begin(), order.end(), heavier);
  if (params.top_p < 1) {
    double total = 0;
    for (const int32_t id : order) total += weights[id];
    double sum = 0;
    size_t n = 0;
    while (n < order.size() && (n == 0 || sum < params.top_p * total)) sum += weights[order[n++]];
    keep = std::min(keep, n);
  }
  if (params.min_p > 0) {
    const float floor = params.min_p * weights[order[0]];
    while (keep > 1 && weights[order[keep - 1]] < floor) --keep;
  }
  order.resize(keep);
  std::vector<float> kept(order.size());
  for (size_t i = 0; i < order.size(); ++i) kept[i] = weights[order[i]];
  std::fill(weights.begin(), weights.end(), 0.0f);
  for (size_t i = 0; i < order.size(); ++i) weights[order[i]] = kept[i];
}

}  // namespace

SampleResult SampleToken(const SamplerInput& input, const SamplerParams& params,
                         std::vector<float>* scratch) {
  const std::span<const float> logits = input.logits;
  CHECK(!logits.empty());
  const int64_t n = static_cast<int64_t>(logits.size());
  const float inverse = params.inverse_temperature();
  scratch->resize(logits.size());
  SampleResult result;
  const LogSoftmaxStats stats = LogSoftmax(logits.data(), n, inverse, scratch->data());
  result.entropy = stats.entropy;
  result.finite = stats.finite;
  if (!stats.finite) return result;
  if (params.penalties() || (params.temperature == 0 && !input.banned_ids.empty())) {
    scratch->assign(logits.begin(), logits.end());
    Penalise(input, params, scratch);
    if (params.temperature > 0) LogSoftmax(scratch->data(), n, inverse, scratch->data());
    Ban(input, params.temperature > 0 ? 0 : -std::numeric_limits<float>::infinity(), scratch);
    if (params.temperature == 0) result.token_id = ArgMax(*scratch);
  } else {
    Ban(input, 0, scratch);
    if (params.temperature == 0) result.token_id = ArgMax(logits);
  }
  if (params.temperature > 0) {
    if (params.filters()) Filter(params, *scratch);
    result.token_id = DrawInOrder(*scratch, Uniform(input.seed, input.position));
  }
  result.logprob = stats.Logprob(logits[result.token_id], inverse);
  return result;
}

}  // namespace orrery::kernels

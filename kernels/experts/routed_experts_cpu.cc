#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/experts/routed_experts.h"
#include "kernels/head/log_softmax.h"
#include "kernels/swiglu/swiglu.h"

namespace orrery::kernels {
namespace {

void TopK(const float* p, int64_t num_experts, int64_t k, int32_t* experts) {
  std::vector<int32_t> order(static_cast<size_t>(num_experts));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int32_t a, int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  std::copy_n(order.begin(), k, experts);
}

bool SameSet(const int32_t* a, const int32_t* b, int64_t k) {
  return std::is_permutation(a, a + k, b, b + k);
}

float SlotSum(const float* p, const int32_t* experts, int64_t k) {
  float sum = 0;
  for (int64_t s = 0; s < k; ++s) sum += p[experts[s]];
  return sum;
}

// Counting sort of the T * k slots by expert; stable, so rows of an expert keep their order.
void SortByExpert(const Routing& routing, int64_t num_experts, ExpertsState* state) {
  state->first.assign(static_cast<size_t>(num_experts + 1), 0);
  for (const int32_t e : routing.experts) ++state->first[e + 1];
  std::partial_sum(state->first.begin(), state->first.end(), state->first.begin());
  std::vector<int64_t> next(state->first.begin(), state->first.end() - 1);
  state->order.resize(routing.experts.size());
  for (size_t i = 0; i < routing.experts.size(); ++i) {
    state->order[next[routing.experts[i]]++] = static_cast<int32_t>(i);
  }
}

TensorView Part(const std::vector<float>& data, int64_t first, int64_t rows, int64_t cols) {
  return TensorView::Float(const_cast<float*>(data.data()) + first * cols, rows, cols);
}

}  // namespace

void RouteTopK(const TensorView& router_logits, const ExpertsShape& shape,
               std::span<const int32_t> replay, Routing* routing) {
  const int64_t rows = router_logits.rows, e = shape.num_experts, k = shape.top_k;
  CHECK_EQ(router_logits.cols, e);
  CHECK(replay.empty() || static_cast<int64_t>(replay.size()) == rows * k);
  routing->experts.resize(rows * k);
  routing->weights.resize(rows * k);
  routing->probabilities.resize(rows * e);
  routing->num_differing = 0;
  std::vector<int32_t> own(static_cast<size_t>(k));
  for (int64_t t = 0; t < rows; ++t) {
    float* p = routing->probabilities.data() + t * e;
    const LogSoftmaxStats stats = LogSoftmax(router_logits.f32(t), e, 1, p);
    const float inverse = 1 / std::exp(stats.log_sum);
    for (int64_t i = 0; i < e; ++i) p[i] *= inverse;
    int32_t* experts = routing->experts.data() + t * k;
    if (replay.empty() || replay[t * k] < 0) {
      TopK(p, e, k, experts);
    } else {
      std::copy_n(replay.begin() + t * k, k, experts);
      TopK(p, e, k, own.data());
      routing->num_differing += SameSet(experts, own.data(), k) ? 0 : 1;
    }
    const float sum = shape.normalise ? SlotSum(p, experts, k) : 1;
    for (int64_t s = 0; s < k; ++s) routing->weights[t * k + s] = p[experts[s]] / sum;
  }
}

void RouteTopKGrad(const Routing& routing, const ExpertsShape& shape,
                   std::span<const float> dweights, const TensorView& dlogits) {
  const int64_t e = shape.num_experts, k = shape.top_k;
  std::vector<float> dp(static_cast<size_t>(e));
  for (int64_t t = 0; t < dlogits.rows; ++t) {
    const float* p = routing.probabilities.data() + t * e;
    const int32_t* experts = routing.experts.data() + t * k;
    const float* w = routing.weights.data() + t * k;
    const float* dw = dweights.data() + t * k;
    std::fill(dp.begin(), dp.end(), 0.0f);
    // w_s = p_s / S: dp_s = (dw_s - sum_r dw_r w_r) / S.
    float dot = 0;
    if (shape.normalise) {
      for (int64_t s = 0; s < k; ++s) dot += dw[s] * w[s];
    }
    const float sum = shape.normalise ? SlotSum(p, experts, k) : 1;
    for (int64_t s = 0; s < k; ++s) dp[experts[s]] += (dw[s] - dot) / sum;
    float mean = 0;
    for (int64_t i = 0; i < e; ++i) mean += p[i] * dp[i];
    for (int64_t i = 0; i < e; ++i) dlogits.f32(t)[i] = p[i] * (dp[i] - mean);
  }
}

void RoutedExperts(const TensorView& x, const Routing& routing, const ExpertsShape& shape,
                   std::span<const PackedWeight> gate_up, std::span<const PackedWeight> down,
                   Rounding rounding, ExpertsState* state, const TensorView& out) {
  const int64_t d = shape.d, f = shape.f, k = shape.top_k;
  const int64_t slots = x.rows * k;
  SortByExpert(routing, shape.num_experts, state);
  state->x.resize(slots * d);
  state->gate_up.resize(slots * 2 * f);
  state->hidden.resize(slots * f);
  state->y.resize(slots * d);
  for (int64_t i = 0; i < slots; ++i) {
    std::memcpy(state->x.data() + i * d, x.f32(state->order[i] / k), d * sizeof(float));
  }
  ParallelFor(shape.num_experts, [&](int64_t e) {
    const int64_t first = state->first[e], n = state->first[e + 1] - first;
    if (n == 0) return;
    const TensorView gu = Part(state->gate_up, first, n, 2 * f);
    const TensorView hidden = Part(state->hidden, first, n, f);
    Linear(Part(state->x, first, n, d), gate_up[e], nullptr, rounding, gu);
    SwiGlu(gu, rounding, hidden);
    Linear(hidden, down[e], nullptr, rounding, Part(state->y, first, n, d));
  });
  std::vector<int32_t> place(static_cast<size_t>(slots));  // row * k + slot -> sorted position
  for (int64_t i = 0; i < slots; ++i) place[state->order[i]] = static_cast<int32_t>(i);
  for (int64_t t = 0; t < x.rows; ++t) {
    float* to = out.f32(t);
    std::memset(to, 0, d * sizeof(float));
    for (int64_t s = 0; s < k; ++s) {
      const float w = routing.weights[t * k + s];
      const float* y = state->y.data() + place[t * k + s] * d;
      for (int64_t i = 0; i < d; ++i) to[i] += w * y[i];
    }
    if (rounding == Rounding::kBFloat16) {
      for (int64_t i = 0; i < d; ++i) to[i] = RoundToBFloat16(to[i]);
    }
  }
}

void RoutedExpertsGrad(const TensorView& dout, const Routing& routing, const ExpertsShape& shape,
                       const TensorView& gate_up, const TensorView& down, const ExpertsState& state,
                       const TensorView& dx, std::span<float> dweights, const TensorView& dgate_up,
                       const TensorView& ddown) {
  const int64_t d = shape.d, f = shape.f, k = shape.top_k;
  const int64_t slots = dout.rows * k;
  std::vector<float> dy(slots * d), dhidden(slots * f), dgu(slots * 2 * f), dxs(slots * d);
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t slot = state.order[i];
    const float* from = dout.f32(slot / k);
    const float* y = state.y.data() + i * d;
    float dot = 0;
    for (int64_t j = 0; j < d; ++j) dot += from[j] * y[j];
    dweights[slot] = dot;
    const float w = routing.weights[slot];
    for (int64_t j = 0; j < d; ++j) dy[i * d + j] = w * from[j];
  }
  ParallelFor(shape.num_experts, [&](int64_t e) {
    const int64_t first = state.first[e], n = state.first[e + 1] - first;
    if (n == 0) return;
    const TensorView dye = Part(dy, first, n, d), dhe = Part(dhidden, first, n, f);
    const TensorView dgue = Part(dgu, first, n, 2 * f);
    LinearGradInput(dye, down.Rows(e * d, d), /*accumulate=*/false, dhe);
    LinearGradWeight(dye, Part(state.hidden, first, n, f), ddown.Rows(e * d, d));
    SwiGluGrad(dhe, Part(state.gate_up, first, n, 2 * f), dgue);
    LinearGradInput(dgue, gate_up.Rows(e * 2 * f, 2 * f), false, Part(dxs, first, n, d));
    LinearGradWeight(dgue, Part(state.x, first, n, d), dgate_up.Rows(e * 2 * f, 2 * f));
  });
  std::vector<int32_t> place(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i) place[state.order[i]] = static_cast<int32_t>(i);
  for (int64_t t = 0; t < dout.rows; ++t) {
    float* to = dx.f32(t);
    std::memset(to, 0, d * sizeof(float));
    for (int64_t s = 0; s < k; ++s) {
      const float* from = dxs.data() + place[t * k + s] * d;
      for (int64_t i = 0; i < d; ++i) to[i] += from[i];
    }
  }
}

}  // namespace orrery::kernels

// The experts' gradient on a GPU: every stage against double, all of it against the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/experts/routed_experts_grad_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/dot.h"

namespace orrery::kernels::cuda {
namespace {

struct Layer {
  Layer(Random* random, DType dtype, const ExpertsShape& s, int64_t rows)
      : dtype(dtype),
        shape(s),
        rows(rows),
        gate_up(Rounded(dtype, random->Floats(s.num_experts * 2 * s.f * s.d,
                                              2 / std::sqrt(static_cast<double>(s.d))))),
        down(Rounded(dtype, random->Floats(s.num_experts * s.d * s.f,
                                           1 / std::sqrt(static_cast<double>(s.f))))),
        x(Rounded(dtype, random->Floats(rows * s.d))),
        dout(Rounded(dtype, random->Floats(rows * s.d))),
        logits(random->Floats(rows * s.num_experts, 3)),
        positions(rows, 1) {
    for (int64_t t = 0; t < rows; t += 3) logits[t * s.num_experts] += 3;  // uneven lists
  }
  int64_t slots() const { return rows * shape.top_k; }

  DType dtype;
  ExpertsShape shape;
  int64_t rows;
  std::vector<float> gate_up, down, x, dout, logits;
  std::vector<int32_t> positions;
};

struct Result {
  std::vector<int32_t> experts, counts, lists;
  std::vector<float> weights, forward, hidden;  // forward: gate and up
  std::vector<float> dx, dweights, dlogits, dw_gate_up, dw_down;
  int64_t capacity = 0;
};

constexpr float kBefore = 0.25f;  // what the weights' gradients hold already

class CudaExpertsGradTest : public CudaTest {
 protected:
  Result Run(const Layer& l) {
    const ExpertsShape& s = l.shape;
    const int64_t slots = l.slots(), capacity = l.rows + 3;
    const DeviceMatrix w_gate_up(l.dtype, l.gate_up, s.num_experts * 2 * s.f, s.d);
    const DeviceMatrix w_down(l.dtype, l.down, s.num_experts * s.d, s.f);
    const DeviceMatrix x(l.dtype, l.x, l.rows, s.d, 8), dout(l.dtype, l.dout, l.rows, s.d, 8);
    const DeviceMatrix logits(DType::kFloat32, l.logits, l.rows, s.num_experts);
    const DeviceArray<int32_t> positions(l.positions);
    DeviceArray<float> weights(slots), dweights(slots);
    DeviceArray<int32_t> experts(slots), counts(s.num_experts), lists(s.num_experts * capacity);
    counts.Zero();
    const Routing routing{weights.get(), experts.get(), counts.get(), lists.get(), capacity};
    RouteTopK(logits.view(), s, positions.get(), {}, routing, nullptr);
    SortExpertLists(routing, s, l.rows, nullptr);

    const DeviceMatrix gate_up(l.dtype, slots, 2 * s.f), hidden(l.dtype, slots, s.f);
    ExpertsLinear(x.view(), s.top_k, w_gate_up.view(), s, routing, limits_, gate_up.view(),
                  nullptr);
    SwiGlu(gate_up.view(), hidden.view(), nullptr);
    ExpectSameProducts(l, x.view(), w_gate_up.view(), w_down.view(), routing, hidden);
    Result r;
    r.forward = gate_up.Download();
    r.hidden = hidden.Download();

    const DeviceMatrix dx(l.dtype, l.rows, s.d, 8);
    const DeviceMatrix dlogits(DType::kFloat32, l.rows, s.num_experts);
    const DeviceMatrix dw_gate_up(DType::kFloat32, std::vector<float>(l.gate_up.size(), kBefore),
                                  s.num_experts * 2 * s.f, s.d);
    const DeviceMatrix dw_down(DType::kFloat32, std::vector<float>(l.down.size(), kBefore),
                               s.num_experts * s.d, s.f);
    const DeviceArray<uint8_t> workspace(RoutedExpertsGradWorkspaceBytes(s, l.rows, l.dtype));
    RoutedExpertsGradArgs args;
    args.dout = dout.view();
    args.x = x.view();
    args.gate_up = gate_up.view();
    args.w_gate_up = w_gate_up.view();
    args.w_down = w_down.view();
    args.routing = routing;
    args.dx = dx.view();
    args.dweights = dweights.get();
    args.dw_gate_up = dw_gate_up.view();
    args.dw_down = dw_down.view();
    RoutedExpertsGrad(args, s, limits_, workspace.get(), nullptr);
    RouteTopKGrad(logits.view(), dweights.get(), routing, s, dlogits.view(), nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(dx.GapsUntouched());
    r.experts = experts.Download();
    r.counts = counts.Download();
    r.lists = lists.Download();
    r.capacity = capacity;
    r.weights = weights.Download();
    r.dx = dx.Download();
    r.dweights = dweights.Download();
    r.dlogits = dlogits.Download();
    r.dw_gate_up = dw_gate_up.Download();
    r.dw_down = dw_down.Download();
    return r;
  }
  // The training forward has the bits of the rollout's.
  void ExpectSameProducts(const Layer& l, const TensorView& x, const TensorView& w_gate_up,
                          const TensorView& w_down, const Routing& routing,
                          const DeviceMatrix& hidden) {
    const ExpertsShape& s = l.shape;
    const DeviceMatrix fused(l.dtype, l.slots(), s.f);
    const DeviceMatrix y(l.dtype, l.slots(), s.d), other(l.dtype, l.slots(), s.d);
    ExpertsGateUp(x, w_gate_up, s, routing, limits_, fused.view(), nullptr);
    ExpertsDown(fused.view(), w_down, s, routing, limits_, y.view(), nullptr);
    ExpertsLinear(fused.view(), 1, w_down, s, routing, limits_, other.view(), nullptr);
    ExpectSameBits(l, fused.Download(), hidden.Download(), s.f);
    ExpectSameBits(l, y.Download(), other.Download(), s.d);
  }
  static void ExpectSameBits(const Layer& l, const std::vector<float>& a,
                             const std::vector<float>& b, int64_t width) {
    for (int64_t slot = 0; slot < l.slots(); ++slot) {
      if (l.positions[slot / l.shape.top_k] < 0) continue;
      ASSERT_EQ(std::memcmp(a.data() + slot * width, b.data() + slot * width, width * 4), 0)
          << "slot " << slot << ", width " << width;
    }
  }
};

// A value in double and how far the device's may be from it.
struct Near {
  double value = 0, error = 0;
};
#define EXPECT_WITHIN(got, near, dtype) \
  ASSERT_NEAR(got, (near).value,        \
              (near).error + Eps(dtype) * (std::abs((near).value) + (near).error) + 1e-30)

class Checker {
 public:
  Checker(const Layer& layer, const Result& result) : l(layer), r(result), s(layer.shape) {}

  void ExpectDWeight(int64_t slot) {
    const std::vector<Near>& dh = DHidden(slot);
    Near sum;
    double size = 0;
    for (int64_t j = 0; j < s.f; ++j) {
      const double h = r.hidden[slot * s.f + j];
      sum.value += dh[j].value * h;
      sum.error += dh[j].error * std::abs(h);
      size += std::abs(dh[j].value * h);
    }
    sum.error += SumError({0, size}, s.f);
    EXPECT_WITHIN(r.dweights[slot], sum, DType::kFloat32);
  }
  void ExpectDx(int64_t t, int64_t c) {
    Near sum;
    for (int64_t k = 0; k < s.top_k; ++k) {
      const int64_t slot = t * s.top_k + k, e = r.experts[slot];
      if (e < 0) continue;
      const std::vector<Near>& dgate_up = DGateUp(slot);
      Near of_slot;
      double size = 0;
      for (int64_t n = 0; n < 2 * s.f; ++n) {
        const double w = l.gate_up[(e * 2 * s.f + n) * s.d + c];
        of_slot.value += dgate_up[n].value * w;
        of_slot.error += dgate_up[n].error * std::abs(w);
        size += std::abs(dgate_up[n].value * w);
      }
      of_slot = Stored(of_slot.value, of_slot.error + SumError({0, size}, 2 * s.f));
      sum.value += of_slot.value;
      sum.error += of_slot.error + SumError({0, std::abs(of_slot.value)}, s.top_k);
    }
    EXPECT_WITHIN(r.dx[t * s.d + c], sum, l.dtype);
  }
  std::vector<int64_t> List(int64_t e) const {
    std::vector<int64_t> list;
    for (int64_t i = 0; i < l.slots(); ++i) {
      if (r.experts[i] == e) list.push_back(i);
    }
    return list;
  }
  // terms: of a sum to which rounding adds `relative` a term.
  Near WeightGrad(const std::vector<double>& terms, double relative) const {
    Near sum = {kBefore, 0};
    double size = kBefore;
    for (const double term : terms) {
      sum.value += term;
      size += std::abs(term);
    }
    sum.error = SumError({0, size}, static_cast<int64_t>(terms.size()) + 1) + relative * size;
    return sum;
  }
  void ExpectDWDown(int64_t e, const std::vector<int64_t>& list, int64_t c, int64_t j) const {
    std::vector<double> terms;
    for (const int64_t slot : list) {
      const double h = r.hidden[slot * s.f + j], w = r.weights[slot];
      terms.push_back(Dout(slot)[c] * h * w);
    }
    EXPECT_WITHIN(r.dw_down[(e * s.d + c) * s.f + j], WeightGrad(terms, eps() + 16 * kFloatEps),
                  DType::kFloat32);
  }
  void ExpectDWGateUp(int64_t e, const std::vector<int64_t>& list, int64_t n, int64_t c) {
    std::vector<double> terms;
    double error = 0;
    for (const int64_t slot : list) {
      const Near dgate_up = DGateUp(slot)[n];
      terms.push_back(dgate_up.value * X(slot)[c]);
      error += dgate_up.error * std::abs(X(slot)[c]);
    }
    Near near = WeightGrad(terms, 0);
    near.error += error;
    EXPECT_WITHIN(r.dw_gate_up[(e * 2 * s.f + n) * s.d + c], near, DType::kFloat32);
  }
  void ExpectLists() const {
    for (int64_t e = 0; e < s.num_experts; ++e) {
      const std::vector<int64_t> list = List(e);
      ASSERT_EQ(r.counts[e], static_cast<int64_t>(list.size()));
      for (size_t i = 0; i < list.size(); ++i) {
        ASSERT_EQ(r.lists[e * r.capacity + i], list[i]) << "expert " << e << " place " << i;
      }
    }
  }
  void ExpectPadding() const {
    for (int64_t t = 0; t < l.rows; ++t) {
      if (l.positions[t] >= 0) continue;
      for (int64_t c = 0; c < s.d; ++c) ASSERT_EQ(r.dx[t * s.d + c], 0);
      for (int64_t e = 0; e < s.num_experts; ++e) ASSERT_EQ(r.dlogits[t * s.num_experts + e], 0);
      for (int64_t k = 0; k < s.top_k; ++k) ASSERT_EQ(r.dweights[t * s.top_k + k], 0);
    }
  }
  void ExpectSome(Random* random) {
    for (int i = 0; i < 8; ++i) {
      const int64_t t = random->Pick(0, l.rows - 1);
      for (int n = 0; n < 100; ++n) ExpectDx(t, random->Pick(0, s.d - 1));
      if (r.experts[t * s.top_k] >= 0) ExpectDWeight(t * s.top_k);
    }
    for (int i = 0; i < 12; ++i) {
      const int64_t e = i == 0 ? 0 : random->Pick(0, s.num_experts - 1);
      const std::vector<int64_t> list = List(e);
      for (int n = 0; n < 100; ++n) {
        ExpectDWDown(e, list, random->Pick(0, s.d - 1), random->Pick(0, s.f - 1));
        ExpectDWGateUp(e, list, random->Pick(0, 2 * s.f - 1), random->Pick(0, s.d - 1));
      }
    }
  }

 private:
  double eps() const { return Eps(l.dtype); }
  const float* Dout(int64_t slot) const { return l.dout.data() + slot / s.top_k * s.d; }
  const float* X(int64_t slot) const { return l.x.data() + slot / s.top_k * s.d; }
  Near Stored(double value, double error) const {
    return {value, error + eps() * (std::abs(value) + error)};
  }

  // dout W_down of a slot, as it is stored.
  const std::vector<Near>& DHidden(int64_t slot) {
    std::vector<Near>& found = dhidden_[slot];
    if (!found.empty()) return found;
    std::vector<Dot> dots(s.f);
    for (int64_t c = 0; c < s.d; ++c) {
      const float* row = l.down.data() + (r.experts[slot] * s.d + c) * s.f;
      const double g = Dout(slot)[c];
      for (int64_t j = 0; j < s.f; ++j) {
        dots[j].value += g * row[j];
        dots[j].size += std::abs(g * row[j]);
      }
    }
    for (const Dot& dot : dots) found.push_back(Stored(dot.value, SumError(dot, s.d)));
    return found;
  }
  const std::vector<Near>& DGateUp(int64_t slot) {
    std::vector<Near>& found = dgate_up_[slot];
    if (!found.empty()) return found;
    const std::vector<Near>& dhidden = DHidden(slot);
    found.resize(2 * s.f);
    const double w = r.weights[slot];
    for (int64_t j = 0; j < s.f; ++j) {
      const double g = r.forward[slot * 2 * s.f + j], u = r.forward[slot * 2 * s.f + s.f + j];
      const double sigmoid = 1 / (1 + std::exp(-g));
      const double slope = sigmoid * (1 + g * (1 - sigmoid)), silu = g * sigmoid;
      const Near dh = {w * dhidden[j].value, w * dhidden[j].error};
      // __expf: 2 + |g| units of float; 1 - sigmoid cancels by as much.
      const double some = (32 + 4 * std::abs(g)) * kFloatEps * std::abs(dh.value);
      found[j] = Stored(dh.value * u * slope,
                        std::abs(u) * (dh.error * std::abs(slope) + some * (1 + std::abs(g))));
      found[s.f + j] = Stored(dh.value * silu, std::abs(silu) * (dh.error + some));
    }
    return found;
  }

  const Layer& l;
  const Result& r;
  const ExpertsShape& s;
  std::map<int64_t, std::vector<Near>> dhidden_, dgate_up_;  // by slot
};

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(CudaExpertsGradTest, EqualsDoubleAndRepeatsBitwise) {
  struct Case {
    DType dtype;
    ExpertsShape shape;
    int64_t rows;
  };
  Random random(1);
  for (const Case& c :
       std::vector<Case>{{DType::kBFloat16, {3, 2, 128, 64, false}, 1500},
                         {DType::kBFloat16, {16, 4, 64, 32, true}, 301},
                         {DType::kBFloat16, {6, 2, 320, 416, true}, 413},
                         {DType::kBFloat16, {4, 2, 192, 136, true}, 300},  // 2 f: no whole slabs
                         {DType::kBFloat16, {8, 3, 80, 48, false}, 37},
                         {DType::kBFloat16, {5, 2, 17, 9, true}, 37},
                         {DType::kBFloat16, {512, 10, 64, 32, true}, 70},  // experts without rows
                         {DType::kBFloat16, {2, 1, 64, 32, true}, 1},
                         {DType::kBFloat16, {128, 8, 2048, 768, true}, 300},  // Qwen3-30B-A3B
                         {DType::kFloat32, {8, 3, 17, 9, true}, 37},
                         {DType::kFloat32, {16, 4, 64, 128, false}, 130}}) {
    const ExpertsShape& s = c.shape;
    SCOPED_TRACE(testing::Message() << s.num_experts << " experts, d " << s.d << ", f " << s.f
                                    << ", dtype " << static_cast<int>(c.dtype));
    Layer layer(&random, c.dtype, s, c.rows);
    if (c.rows > 2) layer.positions[1] = layer.positions[c.rows - 1] = -1;
    const Result result = Run(layer);
    Checker checker(layer, result);
    checker.ExpectLists();
    checker.ExpectPadding();
    checker.ExpectSome(&random);
    const Result again = Run(layer);
    EXPECT_TRUE(Same(result.dx, again.dx)) << "dx";
    EXPECT_TRUE(Same(result.dlogits, again.dlogits)) << "dlogits";
    EXPECT_TRUE(Same(result.dw_gate_up, again.dw_gate_up)) << "dw_gate_up";
    EXPECT_TRUE(Same(result.dw_down, again.dw_down)) << "dw_down";
  }
}

// ||a - b|| / ||b||.
double Distance(const std::vector<float>& a, const std::vector<float>& b, float before = 0) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - before - b[i];
    difference += d * d;
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / size);
}

TEST_F(CudaExpertsGradTest, EqualsTheCpu) {
  Random random(2);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool normalise : {true, false}) {
      const ExpertsShape s = {8, 3, 128, 64, normalise};
      Layer l(&random, dtype, s, 200);
      const Result result = Run(l);
      const Rounding rounding = dtype == DType::kBFloat16 ? Rounding::kBFloat16 : Rounding::kNone;

      kernels::Routing routing;
      kernels::RouteTopK(View(l.logits, l.rows, s.num_experts), s, {}, &routing);
      ASSERT_EQ(routing.experts, result.experts);
      std::vector<std::vector<float>> memory;
      const auto pack = [&](std::vector<float>& w, int64_t rows, int64_t cols) {
        std::vector<PackedWeight> packed;
        for (int64_t e = 0; e < s.num_experts; ++e) {
          memory.emplace_back(PackedWeight::NumElements(rows, cols));
          packed.push_back(PackWeight(TensorView::Float(w.data() + e * rows * cols, rows, cols),
                                      memory.back().data()));
        }
        return packed;
      };
      std::vector<float> out(l.rows * s.d), dx(out.size()), dweights(l.slots());
      std::vector<float> dw_gate_up(l.gate_up.size()), dw_down(l.down.size());
      std::vector<float> dlogits(l.rows * s.num_experts);
      ExpertsState state;
      const auto gate_up = pack(l.gate_up, 2 * s.f, s.d), down = pack(l.down, s.d, s.f);
      kernels::RoutedExperts(View(l.x, l.rows, s.d), routing, s, gate_up, down, rounding, &state,
                             View(out, l.rows, s.d));
      const int64_t e = s.num_experts;
      kernels::RoutedExpertsGrad(View(l.dout, l.rows, s.d), routing, s,
                                 View(l.gate_up, e * 2 * s.f, s.d), View(l.down, e * s.d, s.f),
                                 state, View(dx, l.rows, s.d), dweights,
                                 View(dw_gate_up, e * 2 * s.f, s.d), View(dw_down, e * s.d, s.f));
      kernels::RouteTopKGrad(routing, s, dweights, View(dlogits, l.rows, e));
      // Roundings of what is stored on the way (hidden, its gradient, that of gate and up, slots of
      // dx, y on the CPU), each of random sign; float32: of sums of up to so many terms.
      const double tolerance = 4 * Eps(dtype) + 200 * kFloatEps;
      EXPECT_LE(Distance(result.dx, dx), tolerance);
      EXPECT_LE(Distance(result.dweights, dweights), tolerance);
      EXPECT_LE(Distance(result.dlogits, dlogits), tolerance);
      EXPECT_LE(Distance(result.dw_gate_up, dw_gate_up, kBefore), tolerance + 1e-6);
      EXPECT_LE(Distance(result.dw_down, dw_down, kBefore), tolerance + 1e-6);
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

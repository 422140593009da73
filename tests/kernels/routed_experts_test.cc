#include "kernels/experts/routed_experts.h"

#include <gtest/gtest.h>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

struct Mlp {
  Mlp(Random* random, const ExpertsShape& s) : shape(s) {
    gate_up = random->Floats(s.num_experts * 2 * s.f * s.d);
    down = random->Floats(s.num_experts * s.d * s.f);
    for (int64_t e = 0; e < s.num_experts; ++e) {
      memory.emplace_back(static_cast<size_t>(PackedWeight::NumElements(2 * s.f, s.d)));
      packed_gate_up.push_back(
          PackWeight(gate_up_view().Rows(e * 2 * s.f, 2 * s.f), memory.back().data()));
      memory.emplace_back(static_cast<size_t>(PackedWeight::NumElements(s.d, s.f)));
      packed_down.push_back(PackWeight(down_view().Rows(e * s.d, s.d), memory.back().data()));
    }
  }
  TensorView gate_up_view() { return View(gate_up, shape.num_experts * 2 * shape.f, shape.d); }
  TensorView down_view() { return View(down, shape.num_experts * shape.d, shape.f); }
  std::vector<float> Run(std::vector<float>& x, const Routing& routing, ExpertsState* state,
                         Rounding rounding = Rounding::kNone) {
    const int64_t rows = static_cast<int64_t>(x.size()) / shape.d;
    std::vector<float> out(x.size());
    RoutedExperts(View(x, rows, shape.d), routing, shape, packed_gate_up, packed_down, rounding,
                  state, View(out, rows, shape.d));
    return out;
  }
  ExpertsShape shape;
  std::vector<float> gate_up, down;
  std::vector<std::vector<float>> memory;
  std::vector<PackedWeight> packed_gate_up, packed_down;
};

TEST(RouteTest, TakesTheLargestTiesToTheLowerExpert) {
  ExpertsShape shape{5, 2, 4, 4, true};
  std::vector<float> logits = {1, 3, 3, 0, 3, /**/ 2, 2, 2, 2, 2, /**/ -5, 0, 4, 1, 3};
  Routing routing;
  RouteTopK(View(logits, 3, 5), shape, {}, &routing);
  EXPECT_EQ(routing.experts, (std::vector<int32_t>{1, 2, 0, 1, 2, 4}));
  for (int64_t t = 0; t < 3; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < 5; ++i) sum += std::exp(logits[t * 5 + i]);
    double kept = 0;
    for (int64_t s = 0; s < 2; ++s) kept += std::exp(logits[t * 5 + routing.experts[t * 2 + s]]);
    for (int64_t s = 0; s < 2; ++s) {
      const double e = std::exp(logits[t * 5 + routing.experts[t * 2 + s]]);
      EXPECT_NEAR(routing.weights[t * 2 + s], e / kept, 32 * kFloatEps);
    }
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(routing.probabilities[t * 5 + i], std::exp(logits[t * 5 + i]) / sum,
                  32 * kFloatEps);
    }
  }
  shape.normalise = false;
  RouteTopK(View(logits, 3, 5), shape, {}, &routing);
  EXPECT_EQ(routing.weights[0], routing.probabilities[1]);
}

TEST(RouteTest, ReplaysARecordAndFallsBackWhereThereIsNone) {
  const ExpertsShape shape{4, 2, 4, 4, true};
  std::vector<float> logits = {1, 2, 3, 4, 1, 2, 3, 4};
  const std::vector<int32_t> record = {0, 1, -1, -1};
  Routing routing;
  RouteTopK(View(logits, 2, 4), shape, record, &routing);
  EXPECT_EQ(routing.experts, (std::vector<int32_t>{0, 1, 3, 2}));
  EXPECT_EQ(routing.num_differing, 1) << "of the replayed rows, one";
  // The same set in another order is no difference: weights follow the experts.
  RouteTopK(View(logits, 2, 4), shape, std::vector<int32_t>{2, 3, 3, 2}, &routing);
  EXPECT_EQ(routing.num_differing, 0);
  EXPECT_NEAR(routing.weights[1] / routing.weights[0], std::exp(1.0), 32 * kFloatEps);
}

TEST(RoutedExpertsTest, EqualsDoubleReferenceAndRowsStandAlone) {
  Random random(1);
  for (const ExpertsShape& shape :
       {ExpertsShape{8, 3, 17, 9, true}, ExpertsShape{1, 1, 5, 16, false},
        ExpertsShape{4, 4, 16, 31, true}}) {
    Mlp mlp(&random, shape);
    constexpr int64_t kRows = 37;
    std::vector<float> x = random.Floats(kRows * shape.d);
    std::vector<float> logits = random.Floats(kRows * shape.num_experts, 2);
    Routing routing;
    RouteTopK(View(logits, kRows, shape.num_experts), shape, {}, &routing);
    ExpertsState state;
    const std::vector<float> out = mlp.Run(x, routing, &state);
    std::vector<double> expected(shape.d);
    for (int64_t t = 0; t < kRows; ++t) {
      const std::span<const int32_t> experts(routing.experts.data() + t * shape.top_k,
                                             static_cast<size_t>(shape.top_k));
      const double size = RoutedExpertsReference(
          x.data() + t * shape.d, shape, experts, routing.weights.data() + t * shape.top_k,
          mlp.gate_up_view(), mlp.down_view(), expected.data());
      const double terms = static_cast<double>(2 * shape.d + shape.f + shape.top_k + 32);
      for (int64_t i = 0; i < shape.d; ++i) {
        ASSERT_NEAR(out[t * shape.d + i], expected[i], terms * kFloatEps * size);
      }
      // The row alone.
      std::vector<float> row(x.begin() + t * shape.d, x.begin() + (t + 1) * shape.d);
      Routing alone;
      RouteTopK(View(logits, kRows, shape.num_experts).Rows(t, 1), shape, {}, &alone);
      ExpertsState other;
      const std::vector<float> single = mlp.Run(row, alone, &other);
      EXPECT_TRUE(std::equal(single.begin(), single.end(), out.begin() + t * shape.d));
    }
    SetNumThreads(3);
    EXPECT_EQ(mlp.Run(x, routing, &state), out);
    SetNumThreads(0);
  }
}

// Loss of the whole layer with the chosen experts held fixed.
double Loss(const ExpertsShape& s, const std::vector<int32_t>& experts, int64_t rows,
            const std::vector<double>& x, const std::vector<double>& logits,
            const std::vector<double>& gate_up, const std::vector<double>& down,
            const std::vector<float>& dout) {
  double loss = 0;
  for (int64_t t = 0; t < rows; ++t) {
    double kept = 0;
    for (int64_t i = 0; i < (s.normalise ? s.top_k : s.num_experts); ++i) {
      const int64_t e = s.normalise ? experts[t * s.top_k + i] : i;
      kept += std::exp(logits[t * s.num_experts + e]);
    }
    for (int64_t slot = 0; slot < s.top_k; ++slot) {
      const int64_t e = experts[t * s.top_k + slot];
      const double w = std::exp(logits[t * s.num_experts + e]) / kept;
      std::vector<double> hidden(s.f);
      for (int64_t j = 0; j < s.f; ++j) {
        double gate = 0, up = 0;
        for (int64_t i = 0; i < s.d; ++i) {
          gate += gate_up[(e * 2 * s.f + j) * s.d + i] * x[t * s.d + i];
          up += gate_up[(e * 2 * s.f + s.f + j) * s.d + i] * x[t * s.d + i];
        }
        hidden[j] = gate / (1 + std::exp(-gate)) * up;
      }
      for (int64_t i = 0; i < s.d; ++i) {
        double y = 0;
        for (int64_t j = 0; j < s.f; ++j) y += down[(e * s.d + i) * s.f + j] * hidden[j];
        loss += w * y * dout[t * s.d + i];
      }
    }
  }
  return loss;
}

TEST(RoutedExpertsTest, GradientsAreTheSlopes) {
  Random random(2);
  for (const bool normalise : {true, false}) {
    const ExpertsShape s{4, 2, 5, 3, normalise};
    constexpr int64_t kRows = 6;
    Mlp mlp(&random, s);
    std::vector<float> x = random.Floats(kRows * s.d), logits = random.Floats(kRows * 4, 2);
    std::vector<float> dout = random.Floats(kRows * s.d), dx(x.size()), dlogits(logits.size());
    std::vector<float> dgate_up(mlp.gate_up.size()), ddown(mlp.down.size());
    std::vector<float> dweights(kRows * s.top_k);
    Routing routing;
    ExpertsState state;
    RouteTopK(View(logits, kRows, 4), s, {}, &routing);
    mlp.Run(x, routing, &state);
    RoutedExpertsGrad(View(dout, kRows, s.d), routing, s, mlp.gate_up_view(), mlp.down_view(),
                      state, View(dx, kRows, s.d), dweights, View(dgate_up, 4 * 2 * s.f, s.d),
                      View(ddown, 4 * s.d, s.f));
    RouteTopKGrad(routing, s, dweights, View(dlogits, kRows, 4));
    const auto d = [](const std::vector<float>& v) {
      return std::vector<double>(v.begin(), v.end());
    };
    const auto& e = routing.experts;
    const auto xs = d(x), ls = d(logits), gs = d(mlp.gate_up), ds = d(mlp.down);
    const auto check = [](const std::vector<float>& got, const std::vector<double>& slopes) {
      // Sums of at most some hundred terms of order 1 on the way.
      const double tolerance = 200 * kFloatEps * (1 + MaxAbs(slopes)) + 10 * kSlopeError;
      ASSERT_EQ(got.size(), slopes.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], slopes[i], tolerance) << i;
    };
    check(dx, Slopes([&](const auto& v) { return Loss(s, e, kRows, v, ls, gs, ds, dout); }, x));
    check(dlogits,
          Slopes([&](const auto& v) { return Loss(s, e, kRows, xs, v, gs, ds, dout); }, logits));
    check(dgate_up, Slopes([&](const auto& v) { return Loss(s, e, kRows, xs, ls, v, ds, dout); },
                           mlp.gate_up));
    check(ddown,
          Slopes([&](const auto& v) { return Loss(s, e, kRows, xs, ls, gs, v, dout); }, mlp.down));
  }
}

}  // namespace
}  // namespace orrery::kernels

// The experts' grouped products on a GPU, through routing, down to the weighted sum in the norm.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/experts/routed_experts_plan.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/dot.h"

namespace orrery::kernels::cuda {
namespace {

struct Mlp {
  Mlp(Random* random, DType dtype, const ExpertsShape& s)
      : dtype(dtype),
        shape(s),
        gate_up(Rounded(dtype, random->Floats(s.num_experts * 2 * s.f * s.d,
                                              1 / std::sqrt(static_cast<double>(s.d))))),
        down(Rounded(dtype, random->Floats(s.num_experts * s.d * s.f,
                                           1 / std::sqrt(static_cast<double>(s.f))))),
        device_gate_up(dtype, gate_up, s.num_experts * 2 * s.f, s.d),
        device_down(dtype, down, s.num_experts * s.d, s.f) {}
  DType dtype;
  ExpertsShape shape;
  std::vector<float> gate_up, down;
  DeviceMatrix device_gate_up, device_down;
};

struct MlpResult {
  std::vector<int32_t> experts;
  std::vector<float> hidden, y;
};

class CudaExpertsTest : public CudaTest {
 protected:
  MlpResult Run(const Mlp& mlp, const TensorView& x, const TensorView& logits,
                const std::vector<int32_t>& positions) {
    const ExpertsShape& s = mlp.shape;
    const int64_t slots = x.rows * s.top_k, capacity = x.rows + 3;
    DeviceArray<float> weights(slots);
    DeviceArray<int32_t> experts(slots), counts(s.num_experts), lists(s.num_experts * capacity);
    const DeviceArray<int32_t> device_positions(positions);
    counts.Zero();
    const Routing routing{weights.get(), experts.get(), counts.get(), lists.get(), capacity};
    RouteTopK(logits, s, device_positions.get(), {}, routing, nullptr);
    const DeviceMatrix hidden(mlp.dtype, slots, s.f), y(mlp.dtype, slots, s.d);
    ExpertsGateUp(x, mlp.device_gate_up.view(), s, routing, limits_, hidden.view(), nullptr);
    ExpertsDown(hidden.view(), mlp.device_down.view(), s, routing, limits_, y.view(), nullptr);
    return {experts.Download(), hidden.Download(), y.Download()};
  }
};

void ExpectHidden(const Mlp& mlp, const float* x, int32_t expert, int64_t i, float got) {
  const int64_t d = mlp.shape.d, f = mlp.shape.f;
  const double eps = Eps(mlp.dtype);
  const Dot gate = DotOf(x, mlp.gate_up.data() + (expert * 2 * f + i) * d, d);
  const Dot up = DotOf(x, mlp.gate_up.data() + (expert * 2 * f + f + i) * d, d);
  const double silu = gate.value / (1 + std::exp(-gate.value));
  const double gate_error = SumError(gate, d) + eps * std::abs(gate.value);
  const double up_error = SumError(up, d) + eps * std::abs(up.value);
  const double error = 1.1 * gate_error * (std::abs(up.value) + up_error) +
                       std::abs(silu) * (up_error + 16 * kFloatEps * std::abs(up.value));
  ASSERT_NEAR(got, silu * up.value, error + eps * (std::abs(silu * up.value) + error));
}

void ExpectResult(Random* random, const Mlp& mlp, const std::vector<float>& x,
                  const MlpResult& result) {
  const ExpertsShape& s = mlp.shape;
  const int64_t slots = static_cast<int64_t>(result.experts.size());
  for (int i = 0; i < 2000; ++i) {
    const int64_t slot = random->Pick(0, slots - 1), expert = result.experts[slot];
    if (expert < 0) {  // padding: nothing is written
      ASSERT_TRUE(std::isnan(result.hidden[slot * s.f]) && std::isnan(result.y[slot * s.d]));
      continue;
    }
    const int64_t j = random->Pick(0, s.f - 1), c = random->Pick(0, s.d - 1);
    ExpectHidden(mlp, x.data() + slot / s.top_k * s.d, static_cast<int32_t>(expert), j,
                 result.hidden[slot * s.f + j]);
    const Dot dot =
        DotOf(result.hidden.data() + slot * s.f, mlp.down.data() + (expert * s.d + c) * s.f, s.f);
    const double error = SumError(dot, s.f);
    ASSERT_NEAR(result.y[slot * s.d + c], dot.value,
                error + Eps(mlp.dtype) * (std::abs(dot.value) + error));
  }
}

// Slots with the same bits, padding (NaN) included.
bool SameBits(const float* a, const float* b, int64_t n) { return std::memcmp(a, b, n * 4) == 0; }

TEST_F(CudaExpertsTest, EqualsDoubleAndRowsStandAlone) {
  Random random(1);
  struct Case {
    DType dtype;
    ExpertsShape shape;
    int64_t rows;
  };
  for (const Case& c :
       std::vector<Case>{{DType::kBFloat16, {128, 8, 2048, 768, true}, 300},  // Qwen3-30B-A3B
                         {DType::kBFloat16, {16, 4, 64, 32, true}, 301},
                         {DType::kBFloat16, {8, 4, 256, 192, true}, 700},  // wide tiles, in part
                         {DType::kBFloat16, {8, 3, 320, 64, true}, 299},
                         {DType::kBFloat16, {8, 3, 80, 48, false}, 37},
                         {DType::kBFloat16, {5, 2, 17, 9, true}, 37},
                         {DType::kBFloat16, {512, 10, 32, 16, true}, 70},
                         {DType::kFloat32, {8, 3, 17, 9, true}, 37},
                         {DType::kFloat32, {16, 4, 64, 128, true}, 130},
                         {DType::kFloat32, {1, 1, 5, 16, true}, 3}}) {
    const ExpertsShape& s = c.shape;
    SCOPED_TRACE(testing::Message() << s.num_experts << " experts, d " << s.d << ", f " << s.f);
    const Mlp mlp(&random, c.dtype, s);
    const std::vector<float> x = Rounded(c.dtype, random.Floats(c.rows * s.d));
    std::vector<float> logits = random.Floats(c.rows * s.num_experts, 3);
    for (int64_t t = 0; t < c.rows; ++t) logits[t * s.num_experts] += t % 3 == 0 ? 3 : 0;  // uneven
    const DeviceMatrix device_x(c.dtype, x, c.rows, s.d);
    const DeviceMatrix device_logits(DType::kFloat32, logits, c.rows, s.num_experts);
    std::vector<int32_t> positions(c.rows, 1);
    if (c.rows > 2) positions[1] = -1;
    const MlpResult whole = Run(mlp, device_x.view(), device_logits.view(), positions);
    ExpectResult(&random, mlp, x, whole);
    for (const int64_t count : {1, 2, 7, 16, 33, 64, 129, 299}) {
      if (count > c.rows) continue;
      const int64_t first = c.rows - count, slot = first * s.top_k, n = count * s.top_k;
      const MlpResult part =
          Run(mlp, device_x.view().Rows(first, count), device_logits.view().Rows(first, count),
              {positions.begin() + first, positions.end()});
      ASSERT_TRUE(
          std::equal(part.experts.begin(), part.experts.end(), whole.experts.begin() + slot));
      ASSERT_TRUE(SameBits(part.hidden.data(), whole.hidden.data() + slot * s.f, n * s.f)) << count;
      ASSERT_TRUE(SameBits(part.y.data(), whole.y.data() + slot * s.d, n * s.d)) << count;
    }
  }
}

// One row's tiles are found by its slots, not by lists.
TEST_F(CudaExpertsTest, OneRowHasTheBitsOfLists) {
  Random random(3);
  const std::vector<ExpertsShape> shapes = {{128, 8, 2048, 768, true},  // Qwen3-30B-A3B
                                            {8, 3, 320, 64, true},
                                            {8, 3, 80, 48, false},  // tiles in part
                                            {40, 10, 160, 80, true}};
  const auto by_slots = [](const ExpertsShape& s, bool gate_up) {
    const GroupedTile tile = PlanGrouped(
        {s.top_k, s.num_experts, gate_up ? s.f : s.d, gate_up ? s.d : s.f, gate_up}, H200Limits());
    return tile == GroupedTile::kThin || tile == GroupedTile::kFew;
  };
  for (const ExpertsShape& s : shapes) {
    ASSERT_TRUE(by_slots(s, true) && by_slots(s, false));
    const Mlp mlp(&random, DType::kBFloat16, s);
    constexpr int64_t kRows = 40;
    const DeviceMatrix x(DType::kBFloat16, random.Floats(kRows * s.d), kRows, s.d);
    const DeviceMatrix logits(DType::kFloat32, random.Floats(kRows * s.num_experts, 3), kRows,
                              s.num_experts);
    std::vector<int32_t> positions(kRows, 1);
    positions[1] = -1;  // its slots stay NaN
    const MlpResult all = Run(mlp, x.view(), logits.view(), positions);
    for (int64_t t = 0; t < 6; ++t) {
      SCOPED_TRACE(testing::Message() << s.num_experts << " experts, row " << t);
      const MlpResult one = Run(mlp, x.view().Rows(t, 1), logits.view().Rows(t, 1), {positions[t]});
      const int64_t slot = t * s.top_k;
      ASSERT_EQ(std::isnan(one.y[0]), t == 1);
      ASSERT_TRUE(std::equal(one.experts.begin(), one.experts.end(), all.experts.begin() + slot));
      ASSERT_TRUE(SameBits(one.hidden.data(), all.hidden.data() + slot * s.f, s.top_k * s.f));
      ASSERT_TRUE(SameBits(one.y.data(), all.y.data() + slot * s.d, s.top_k * s.d));
    }
  }
}

// Tiles that thread blocks begin before routing is done: of experts that get no rows, few, or more
// than a tile has. Their rows have the bits that they have in batches too small for guesses.
TEST_F(CudaExpertsTest, GuessedTilesMayHaveNoRowsOrTooMany) {
  Random random(4);
  for (const int64_t d : {256, 512}) {  // fewer slabs than stages, and more
    const ExpertsShape s{128, 8, d, 512, true};
    const Mlp mlp(&random, DType::kBFloat16, s);
    constexpr int64_t kRows = 200, kFew = 40;
    ASSERT_GT(GuessedExperts(kRows * s.top_k, s.num_experts, 4, limits_), 8);
    ASSERT_EQ(GuessedExperts(kFew * s.top_k, s.num_experts, 4, limits_), 0);
    ASSERT_EQ(PlanGrouped({kRows * s.top_k, s.num_experts, s.f, s.d, true}, limits_),
              GroupedTile::kBlock);
    const std::vector<float> x = Rounded(DType::kBFloat16, random.Floats(kRows * d));
    std::vector<float> logits = random.Floats(kRows * s.num_experts, 3);
    for (int64_t t = 0; t < kRows; ++t) {
      float* row = logits.data() + t * s.num_experts;
      row[1] = row[2] = 100;                                    // every row's
      for (const int64_t e : {0, 3, 7, 8, 127}) row[e] = -100;  // nobody's
    }
    const DeviceMatrix device_x(DType::kBFloat16, x, kRows, d);
    const DeviceMatrix device_logits(DType::kFloat32, logits, kRows, s.num_experts);
    const MlpResult whole =
        Run(mlp, device_x.view(), device_logits.view(), std::vector<int32_t>(kRows, 1));
    ExpectResult(&random, mlp, x, whole);
    for (int64_t first = 0; first < kRows; first += kFew) {
      const MlpResult part =
          Run(mlp, device_x.view().Rows(first, kFew), device_logits.view().Rows(first, kFew),
              std::vector<int32_t>(kFew, 1));
      const int64_t slot = first * s.top_k, n = kFew * s.top_k;
      ASSERT_TRUE(SameBits(part.hidden.data(), whole.hidden.data() + slot * s.f, n * s.f));
      ASSERT_TRUE(SameBits(part.y.data(), whole.y.data() + slot * d, n * d));
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

// Choice of experts on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/experts/routed_experts_cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

class CudaRoutingTest : public CudaTest {};

struct RouteResult {
  std::vector<int32_t> experts, counts, slots;
  std::vector<float> weights;
};

RouteResult Route(const std::vector<float>& logits, const ExpertsShape& shape,
                  const std::vector<int32_t>& positions, const std::vector<int32_t>& replay,
                  int64_t capacity) {
  const int64_t rows = static_cast<int64_t>(positions.size()), slots = rows * shape.top_k;
  const DeviceMatrix device(DType::kFloat32, logits, rows, shape.num_experts, 3);
  const DeviceArray<int32_t> device_positions(positions), device_replay(replay);
  DeviceArray<float> weights(slots);
  DeviceArray<int32_t> experts(slots), counts(shape.num_experts),
      lists(shape.num_experts * capacity);
  counts.Zero();
  RouteTopK(device.view(), shape, device_positions.get(),
            ReplayedRouting::Of(replay.empty() ? nullptr : device_replay.get(), shape.top_k),
            {weights.get(), experts.get(), counts.get(), lists.get(), capacity}, nullptr);
  return {experts.Download(), counts.Download(), lists.Download(), weights.Download()};
}

std::vector<int32_t> TopK(const float* logits, const ExpertsShape& shape) {
  std::vector<int32_t> order(shape.num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  order.resize(shape.top_k);
  return order;
}

// Weights by the definition, in double.
void ExpectWeights(const float* logits, const ExpertsShape& shape, const int32_t* experts,
                   const float* weights) {
  const double max = *std::max_element(logits, logits + shape.num_experts);
  double all = 0, chosen = 0;
  for (int64_t e = 0; e < shape.num_experts; ++e) all += std::exp(logits[e] - max);
  for (int64_t s = 0; s < shape.top_k; ++s) chosen += std::exp(logits[experts[s]] - max);
  for (int64_t s = 0; s < shape.top_k; ++s) {
    const double logit = logits[experts[s]] - max;
    const double expected = std::exp(logit) / (shape.normalise ? chosen : all);
    const double tolerance =
        (static_cast<double>(shape.num_experts) + 8 + 4 * std::abs(logit)) * kFloatEps * expected;
    ASSERT_NEAR(weights[s], expected, tolerance);
  }
}

// Each expert's list holds exactly its slots.
void ExpectLists(const RouteResult& result, const ExpertsShape& shape, int64_t capacity) {
  std::vector<std::vector<int32_t>> expected(shape.num_experts);
  for (size_t slot = 0; slot < result.experts.size(); ++slot) {
    if (result.experts[slot] >= 0) {
      expected[result.experts[slot]].push_back(static_cast<int32_t>(slot));
    }
  }
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    ASSERT_EQ(result.counts[e], static_cast<int32_t>(expected[e].size()));
    std::vector<int32_t> list(result.slots.begin() + e * capacity,
                              result.slots.begin() + e * capacity + result.counts[e]);
    std::sort(list.begin(), list.end());
    ASSERT_EQ(list, expected[e]);
  }
}

TEST_F(CudaRoutingTest, TakesTheLargestTiesToTheLowerExpert) {
  Random random(1);
  for (const auto& [experts, top_k] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {5, 2}, {32, 32}, {60, 4}, {128, 8}, {130, 6}, {256, 8}, {300, 10}, {512, 32}}) {
    for (const bool normalise : {true, false}) {
      for (const int64_t rows : {1, 3, 33, 301, 2075}) {
        if (rows > 2000 && experts > 130) continue;
        const ExpertsShape shape{experts, top_k, 8, 8, normalise};
        std::vector<float> logits = random.Floats(rows * experts, 6);
        for (int64_t i = 0; i < rows * experts; ++i) {
          if (i / experts % 2 == 0) logits[i] = std::round(logits[i]);  // many ties
          if (i % 17 == 0) logits[i] = -0.0f;
        }
        std::vector<int32_t> positions(rows, 4);
        if (rows > 3) positions[2] = positions[rows - 1] = -1;
        const int64_t capacity = rows + 5;
        const RouteResult result = Route(logits, shape, positions, {}, capacity);
        for (int64_t t = 0; t < rows; ++t) {
          const float* row = logits.data() + t * experts;
          const int32_t* got = result.experts.data() + t * top_k;
          const float* weights = result.weights.data() + t * top_k;
          if (positions[t] < 0) {
            ASSERT_TRUE(std::all_of(got, got + top_k, [](int32_t e) { return e == -1; }));
            ASSERT_TRUE(std::all_of(weights, weights + top_k, [](float w) { return w == 0; }));
            continue;
          }
          ASSERT_EQ(std::vector<int32_t>(got, got + top_k), TopK(row, shape));
          ExpectWeights(row, shape, got, weights);
        }
        ExpectLists(result, shape, capacity);
      }
    }
  }
}

TEST_F(CudaRoutingTest, ReplaysARecordAndFallsBackWhereThereIsNone) {
  Random random(2);
  const ExpertsShape shape{128, 8, 8, 8, true};
  constexpr int64_t kRows = 20;
  const std::vector<float> logits = random.Floats(kRows * 128, 5);
  const std::vector<int32_t> positions(kRows, 0);
  const RouteResult own = Route(logits, shape, positions, {}, kRows);
  std::vector<int32_t> replay = own.experts;
  for (int64_t s = 0; s < 8; ++s) {
    replay[s] = static_cast<int32_t>(100 + s);  // row 0: others than its own
    replay[8 + s] = -1;
  }
  const RouteResult result = Route(logits, shape, positions, replay, kRows);
  for (int64_t i = 0; i < kRows * 8; ++i) {
    EXPECT_EQ(result.experts[i], replay[i] < 0 ? own.experts[i] : replay[i]);
    if (i < 8) continue;
    EXPECT_EQ(result.weights[i], own.weights[i]);  // the same experts: the same bits
  }
  ExpectWeights(logits.data(), shape, replay.data(), result.weights.data());
  ExpectLists(result, shape, kRows);
}

// A record of several layers, row by row, of ids of one or two bytes: written by one call, replayed
// by the next, which counts the rows whose own choice is another set.
TEST_F(CudaRoutingTest, RecordsBytesAndReplaysThem) {
  for (const int64_t experts : {16, 200, 384}) {
    const ExpertsShape shape{experts, 4, 8, 8, true};
    constexpr int64_t kRows = 77, kLayers = 3;
    const int id_bytes = experts <= 256 ? 1 : 2;
    std::mt19937 random(static_cast<uint32_t>(experts));
    std::normal_distribution<float> normal;
    std::vector<float> logits(static_cast<size_t>(kRows * experts)), others(logits.size());
    for (float& v : logits) v = normal(random);
    for (size_t i = 0; i < logits.size(); ++i) others[i] = logits[i] + 0.1f * normal(random);
    std::vector<int32_t> positions(kRows, 5);
    positions[3] = -1;  // padding
    const DeviceMatrix first(DType::kFloat32, logits, kRows, experts, 3),
        second(DType::kFloat32, others, kRows, experts, 3);
    const DeviceArray<int32_t> device_positions(positions);
    const int64_t row_bytes = kLayers * shape.top_k * id_bytes;
    DeviceArray<uint8_t> record(kRows * row_bytes);
    record.Zero();
    const auto route = [&](const TensorView& of, const ReplayedRouting& replay, int64_t layer) {
      DeviceArray<float> weights(kRows * shape.top_k);
      DeviceArray<int32_t> ids(kRows * shape.top_k), counts(experts), lists(experts * kRows);
      counts.Zero();
      Routing routing{weights.get(), ids.get(), counts.get(), lists.get(), kRows};
      if (layer >= 0) {
        routing.record = {
            reinterpret_cast<std::byte*>(record.get()) + layer * shape.top_k * id_bytes,
            kLayers * shape.top_k, id_bytes};
      }
      RouteTopK(of, shape, device_positions.get(), replay, routing, nullptr);
      return ids.Download();
    };
    const std::vector<int32_t> chosen = route(first.view(), {}, 1);
    const std::vector<uint8_t> bytes = record.Download();
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        for (int64_t s = 0; s < shape.top_k; ++s) {
          const uint8_t* at = bytes.data() + t * row_bytes + (layer * shape.top_k + s) * id_bytes;
          const int32_t id = id_bytes == 1 ? at[0] : at[0] | at[1] << 8;
          ASSERT_EQ(id, layer == 1 && t != 3 ? chosen[t * shape.top_k + s] : 0)
              << "row " << t << " layer " << layer;
        }
      }
    }
    DeviceArray<int32_t> differing(1);
    differing.Zero();
    ReplayedRouting replay;
    replay.experts = {reinterpret_cast<std::byte*>(record.get()) + shape.top_k * id_bytes,
                      kLayers * shape.top_k, id_bytes};
    replay.differing = differing.get();
    EXPECT_EQ(route(first.view(), replay, -1), chosen);
    EXPECT_EQ(differing.Download()[0], 0);
    EXPECT_EQ(route(second.view(), replay, -1), chosen);
    const std::vector<int32_t> own = route(second.view(), {}, -1);
    int32_t expected = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const auto a = own.begin() + t * shape.top_k, b = chosen.begin() + t * shape.top_k;
      expected += t != 3 && !std::is_permutation(a, a + shape.top_k, b, b + shape.top_k);
    }
    EXPECT_GT(expected, 0);
    EXPECT_EQ(differing.Download()[0], expected);
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

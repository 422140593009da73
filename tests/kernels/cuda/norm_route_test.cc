// Norm, router and choice of experts in one kernel, against the three.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/experts/norm_route_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/dot.h"

namespace orrery::kernels::cuda {
namespace {

constexpr DType kType = DType::kBFloat16;
constexpr float kEps = 1e-6f;

class CudaNormRouteTest : public CudaTest {};

struct Layer {
  int64_t experts, d, top_k;
};
// One tile of experts or several a block, blocks without any, odd numbers of steps, all widths of a
// thread block.
const Layer kLayers[] = {{2, 16, 1},     {8, 64, 2},     {60, 2048, 4},  {128, 2048, 8},
                         {128, 1008, 8}, {128, 4096, 8}, {130, 1040, 6}, {256, 2048, 8},
                         {300, 368, 5},  {512, 256, 8}};

struct Case {
  Case(Random* random, const Layer& layer, int64_t rows, bool normalise, bool replays)
      : layer(layer), rows(rows), normalise(normalise) {
    const int64_t d = layer.d;
    x = Rounded(kType, random->Floats(rows * d, 2));
    delta = Rounded(kType, random->Floats(rows * d));
    norm = Rounded(kType, random->Floats(d, 1.5));
    router = Rounded(kType, random->Floats(layer.experts * d, 2 / std::sqrt(d)));
    positions.assign(static_cast<size_t>(rows), 7);
    for (int64_t t = 2; t < rows; t += 5) positions[t] = -1;
    if (!replays) return;
    for (int64_t t = 0; t < rows; ++t) {  // every other row, distinct experts
      const int64_t first = random->Pick(0, layer.experts - 1);
      for (int64_t s = 0; s < layer.top_k; ++s) {
        replay.push_back(t % 2 == 0 ? static_cast<int32_t>((first + s) % layer.experts) : -1);
      }
    }
  }
  ExpertsShape shape() const { return {layer.experts, layer.top_k, layer.d, 8, normalise}; }
  Layer layer;
  int64_t rows;
  bool normalise;
  std::vector<float> x, delta, norm, router;
  std::vector<int32_t> positions, replay;
};

struct Result {
  std::vector<float> sum, out, weights;
  std::vector<int32_t> experts, counts, lists, differing;
  std::vector<uint8_t> record;
};

// A case on the device, before its kernels.
struct Device {
  Device(const Case& c, int64_t gap)
      : c(c),
        x(kType, c.x, c.rows, c.layer.d, gap),
        delta(kType, c.delta, c.rows, c.layer.d, 2 * gap),
        norm(kType, c.norm, 1, c.layer.d),
        router(kType, c.router, c.layer.experts, c.layer.d, gap),
        sum(kType, c.rows, c.layer.d, gap),
        out(kType, c.rows, c.layer.d, gap),
        weights(c.rows * c.layer.top_k),
        experts(c.rows * c.layer.top_k),
        counts(c.layer.experts),
        lists(c.layer.experts * capacity()),
        differing(1),
        positions(c.positions),
        replay(c.replay),
        record(c.rows * kLayers * c.layer.top_k * id_bytes()) {
    counts.Zero();
    differing.Zero();
  }
  int64_t capacity() const { return c.rows + 3; }
  int id_bytes() const { return c.layer.experts <= 256 ? 1 : 2; }
  Routing routing() const {
    return {weights.get(),
            experts.get(),
            counts.get(),
            lists.get(),
            capacity(),
            {reinterpret_cast<std::byte*>(record.get()) + c.layer.top_k * id_bytes(),
             kLayers * c.layer.top_k, id_bytes()}};
  }
  ReplayedRouting replayed() const {
    ReplayedRouting r =
        ReplayedRouting::Of(c.replay.empty() ? nullptr : replay.get(), c.layer.top_k);
    r.differing = differing.get();
    return r;
  }
  Result Download(bool in_place) const {
    Result r{(in_place ? x : sum).Download(),
             out.Download(),
             weights.Download(),
             experts.Download(),
             counts.Download(),
             lists.Download(),
             differing.Download(),
             record.Download()};
    // The order inside a list is free.
    for (int64_t e = 0; e < c.layer.experts; ++e) {
      const auto list = r.lists.begin() + e * capacity();
      std::sort(list, list + std::clamp<int64_t>(r.counts[e], 0, capacity()));
    }
    return r;
  }

  static constexpr int64_t kLayers = 3;  // of the record; this is the middle one
  const Case& c;
  DeviceMatrix x, delta, norm, router, sum, out;
  DeviceArray<float> weights;
  DeviceArray<int32_t> experts, counts, lists, differing, positions, replay;
  DeviceArray<uint8_t> record;
};

Result Fused(const Case& c, const DeviceLimits& limits, Numerics numerics, int64_t gap,
             bool in_place) {
  const Device on(c, gap);
  NormRouteArgs args;
  args.x = on.x.view();
  args.delta = on.delta.view();
  args.norm = on.norm.view();
  args.eps = kEps;
  args.router = on.router.view();
  args.sum = in_place ? on.x.view() : on.sum.view();
  args.out = on.out.view();
  args.shape = c.shape();
  args.positions = on.positions.get();
  args.replay = on.replayed();
  args.routing = on.routing();
  NormRoute(args, limits, nullptr, numerics);
  EXPECT_TRUE(on.x.GapsUntouched() && on.sum.GapsUntouched() && on.out.GapsUntouched());
  return on.Download(in_place);
}

Result OneByOne(const Case& c, const DeviceLimits& limits) {
  const Device on(c, 0);
  Delta delta;
  delta.rows = on.delta.view();
  AddRmsNorm(on.x.view(), delta, on.norm.view(), kEps, on.sum.view(), on.out.view(), nullptr);
  const DeviceMatrix logits(DType::kFloat32, c.rows, c.layer.experts);
  Linear(on.out.view(), on.router.view(), {}, limits, logits.view(), nullptr);
  RouteTopK(logits.view(), c.shape(), on.positions.get(), on.replayed(), on.routing(), nullptr);
  return on.Download(false);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSame(const Result& got, const Result& expected) {
  EXPECT_TRUE(SameBits(got.sum, expected.sum));
  EXPECT_TRUE(SameBits(got.out, expected.out));
  EXPECT_EQ(got.experts, expected.experts);
  EXPECT_TRUE(SameBits(got.weights, expected.weights));
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_EQ(got.lists, expected.lists);
  EXPECT_EQ(got.differing, expected.differing);
  EXPECT_EQ(got.record, expected.record);
}

TEST_F(CudaNormRouteTest, ExactBitsAreThoseOfTheThreeKernels) {
  Random random(1);
  int taken = 0;
  for (const Layer& layer : kLayers) {
    for (const int64_t rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 41, 63, 64}) {
      if (!PlanNormRoute(kType, rows, layer.d, layer.experts, limits_)) continue;
      ++taken;
      for (const bool replays : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << layer.d << ", " << layer.top_k
                                        << " of " << layer.experts << ", replay " << replays);
        const Case c(&random, layer, rows, rows % 2 == 0, replays);
        const Result expected = OneByOne(c, limits_);
        ExpectSame(Fused(c, limits_, Numerics::kExact, 0, true), expected);
        ExpectSame(Fused(c, limits_, Numerics::kExact, 8, false), expected);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(taken, 100);
}

// All rows at once, each alone, and padding alone.
TEST_F(CudaNormRouteTest, ExactBitsDoNotDependOnTheBatch) {
  Random random(2);
  const Layer layer{128, 2048, 8};
  const Case c(&random, layer, 40, true, false);
  const Result whole = Fused(c, limits_, Numerics::kExact, 0, true);
  for (int64_t t = 0; t < c.rows; ++t) {
    Case one = c;
    one.rows = 1;
    one.positions = {c.positions[t]};
    one.x.assign(c.x.begin() + t * layer.d, c.x.begin() + (t + 1) * layer.d);
    one.delta.assign(c.delta.begin() + t * layer.d, c.delta.begin() + (t + 1) * layer.d);
    const Result alone = Fused(one, limits_, Numerics::kExact, 0, true);
    ASSERT_TRUE(std::equal(alone.sum.begin(), alone.sum.end(), whole.sum.begin() + t * layer.d));
    ASSERT_TRUE(std::equal(alone.out.begin(), alone.out.end(), whole.out.begin() + t * layer.d));
    ASSERT_TRUE(
        std::equal(alone.experts.begin(), alone.experts.end(), whole.experts.begin() + t * 8));
    ASSERT_TRUE(
        std::equal(alone.weights.begin(), alone.weights.end(), whole.weights.begin() + t * 8));
  }
}

// Launches follow one another without a gap, each on what the one before wrote.
TEST_F(CudaNormRouteTest, AChainOfLaunchesSeesFinishedRows) {
  Random random(3);
  for (const int64_t rows : {1, 8, 40, 64}) {
    const Case c(&random, {128, 2048, 8}, rows, true, false);
    Device fused(c, 0), three(c, 0);
    const DeviceMatrix logits(DType::kFloat32, c.rows, c.layer.experts);
    for (int turn = 0; turn < 20; ++turn) {
      NormRouteArgs args;
      args.x = args.sum = fused.x.view();
      args.delta = turn % 2 == 0 ? fused.delta.view() : fused.out.view();
      args.norm = fused.norm.view();
      args.eps = kEps;
      args.router = fused.router.view();
      args.out = turn % 2 == 0 ? fused.out.view() : fused.sum.view();
      args.shape = c.shape();
      args.positions = fused.positions.get();
      args.routing = fused.routing();
      if (rows == 1) fused.counts.Zero();
      NormRoute(args, limits_, nullptr);
      Delta delta;
      delta.rows = turn % 2 == 0 ? three.delta.view() : three.out.view();
      const TensorView out = turn % 2 == 0 ? three.out.view() : three.sum.view();
      AddRmsNorm(three.x.view(), delta, three.norm.view(), kEps, three.x.view(), out, nullptr);
      Linear(out, three.router.view(), {}, limits_, logits.view(), nullptr);
      if (rows == 1) three.counts.Zero();
      RouteTopK(logits.view(), c.shape(), three.positions.get(), {}, three.routing(), nullptr);
    }
    const Result a = fused.Download(true), b = three.Download(true);
    EXPECT_TRUE(SameBits(a.sum, b.sum) && SameBits(a.out, b.out)) << rows;
    EXPECT_TRUE(SameBits(a.weights, b.weights)) << rows;
    EXPECT_EQ(a.experts, b.experts);
    EXPECT_EQ(a.counts, b.counts);  // of 20 turns
    EXPECT_TRUE(SameBits(fused.sum.Download(), three.sum.Download()));
  }
}

// Logits of a row in double, from the normed row as it was stored, and how far float32 sums in any
// order may be from them.
struct Logits {
  Logits(const Case& c, const float* normed) {
    for (int64_t e = 0; e < c.layer.experts; ++e) {
      const Dot dot = DotOf(normed, c.router.data() + e * c.layer.d, c.layer.d);
      value.push_back(dot.value);
      error.push_back(SumError(dot, c.layer.d));
    }
  }
  double low(int64_t e) const { return value[e] - error[e]; }
  double high(int64_t e) const { return value[e] + error[e]; }
  std::vector<double> value, error;
};

// Near ties may go either way, by as much as the sums may err; whatever is decided by more must be
// chosen, and in order.
void ExpectChosen(const Logits& logits, const Case& c, const int32_t* got) {
  std::vector<bool> chosen(static_cast<size_t>(c.layer.experts), false);
  for (int64_t s = 0; s < c.layer.top_k; ++s) {
    ASSERT_TRUE(got[s] >= 0 && got[s] < c.layer.experts && !chosen[got[s]]) << "slot " << s;
    chosen[got[s]] = true;
    if (s == 0) continue;
    ASSERT_GE(logits.high(got[s - 1]), logits.low(got[s])) << "slot " << s;
  }
  for (int64_t e = 0; e < c.layer.experts; ++e) {
    if (chosen[e]) continue;
    for (int64_t s = 0; s < c.layer.top_k; ++s) ASSERT_GE(logits.high(got[s]), logits.low(e));
  }
}

void ExpectWeights(const Logits& logits, const Case& c, const int32_t* got, const float* weights) {
  const double max = MaxAbs(logits.value);
  double all = 0, chosen = 0;
  for (const double v : logits.value) all += std::exp(v - max);
  for (int64_t s = 0; s < c.layer.top_k; ++s) chosen += std::exp(logits.value[got[s]] - max);
  // What the logits' errors do to a quotient of exponentials, and float32's own.
  const double by_logits = std::expm1(2 * MaxAbs(logits.error));
  for (int64_t s = 0; s < c.layer.top_k; ++s) {
    const double logit = logits.value[got[s]] - max;
    const double expected = std::exp(logit) / (c.normalise ? chosen : all);
    const double own = (static_cast<double>(c.layer.experts) + 8 + 8 * max) * kFloatEps;
    ASSERT_NEAR(weights[s], expected, (by_logits + own) * expected) << "slot " << s;
  }
}

TEST_F(CudaNormRouteTest, FastSumsAreThoseOfTheReference) {
  Random random(4);
  for (const Layer& layer : kLayers) {
    for (const int64_t rows : {1, 8, 20, 40, 64}) {
      if (!PlanNormRoute(kType, rows, layer.d, layer.experts, limits_)) continue;
      SCOPED_TRACE(testing::Message() << rows << " rows of " << layer.d << ", " << layer.top_k
                                      << " of " << layer.experts);
      const Case c(&random, layer, rows, rows % 3 > 0, false);
      const Result got = Fused(c, limits_, Numerics::kFast, 0, true);
      const Result exact = OneByOne(c, limits_);
      ASSERT_TRUE(SameBits(got.sum, exact.sum) && SameBits(got.out, exact.out));
      std::vector<int32_t> counts(static_cast<size_t>(layer.experts), 0);
      for (int64_t t = 0; t < rows; ++t) {
        const int32_t* experts = got.experts.data() + t * layer.top_k;
        const float* weights = got.weights.data() + t * layer.top_k;
        if (c.positions[t] < 0) {
          ASSERT_TRUE(std::all_of(experts, experts + layer.top_k, [](int e) { return e == -1; }));
          ASSERT_TRUE(std::all_of(weights, weights + layer.top_k, [](float w) { return w == 0; }));
          continue;
        }
        const Logits logits(c, got.out.data() + t * layer.d);
        ExpectChosen(logits, c, experts);
        if (HasFatalFailure()) return;
        ExpectWeights(logits, c, experts, weights);
        if (HasFatalFailure()) return;
        for (int64_t s = 0; s < layer.top_k; ++s) ++counts[experts[s]];
      }
      EXPECT_EQ(got.counts, counts);
      const Result again = Fused(c, limits_, Numerics::kFast, 8, false);  // repeatable
      EXPECT_TRUE(SameBits(again.weights, got.weights));
      EXPECT_EQ(again.experts, got.experts);
      EXPECT_EQ(again.lists, got.lists);
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

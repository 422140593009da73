// Paged attention on a GPU: against double, and bitwise whatever the batch, the split and the
// tiles.
#include <gtest/gtest.h>

#include "tests/kernels/cuda/attention_case.h"

namespace orrery::kernels::cuda {
namespace {

void ExpectAttention(const AttentionCase& c, int64_t t, int64_t head, const float* got) {
  const int64_t d = c.heads.head_dim, kv_head = head / c.heads.group(), n = c.positions[t] + 1;
  const float* q = c.qkv.data() + t * c.heads.qkv_width() + head * d;
  const std::vector<float>&k = c.k[c.sequence_of[t]], &v = c.v[c.sequence_of[t]];
  std::vector<double> expected(d);
  AttentionReference(q, k.data() + kv_head * d, v.data() + kv_head * d, n, d, c.heads.kv_width(),
                     c.scale, expected.data());
  double size = 0;  // of the terms of a score
  for (int64_t j = 0; j < n; ++j) {
    double score = 0;
    for (int64_t i = 0; i < d; ++i)
      score += std::abs(q[i] * k[j * c.heads.kv_width() + kv_head * d + i]);
    size = std::max(size, score * c.scale);
  }
  // |v| <= 1. A score's error is a probability's relative one; probabilities are rounded to the
  // model's dtype and summed, by chunks and blocks.
  const double score_error = static_cast<double>(2 * d + 8) * kFloatEps * size;
  const double tolerance = 2 * score_error + Eps(c.dtype) + static_cast<double>(n) * kFloatEps;
  for (int64_t i = 0; i < d; ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance + Eps(c.dtype) * std::abs(expected[i]))
        << "position " << n - 1 << " head " << head << " d " << d;
  }
}

void ExpectAll(const AttentionCase& c, const std::vector<float>& out) {
  const int64_t width = c.heads.q_width(), d = c.heads.head_dim;
  for (int64_t t = 0; t < c.rows(); ++t) {
    if (c.positions[t] < 0) continue;
    for (int64_t h = 0; h < c.heads.num_heads; ++h) {
      ExpectAttention(c, t, h, out.data() + t * width + h * d);
    }
  }
}

class CudaAttentionTest : public CudaTest {};

struct AttentionShape {
  DType dtype;
  HeadShape heads;
};
const AttentionShape kShapes[] = {
    {DType::kBFloat16, {32, 4, 128}},  // Qwen3-30B-A3B
    {DType::kBFloat16, {9, 3, 64}},    // SmolLM2-135M
    {DType::kBFloat16, {8, 8, 64}},   {DType::kBFloat16, {6, 2, 128}},
    {DType::kBFloat16, {4, 2, 80}},   {DType::kBFloat16, {3, 1, 6}},
    {DType::kFloat32, {9, 3, 64}},    {DType::kFloat32, {4, 1, 256}},
};

TEST_F(CudaAttentionTest, EqualsDoubleWhateverTheSplit) {
  Random random(1);
  DeviceLimits many = limits_, one = limits_;  // with which the plan splits all, and nothing
  many.num_sms = 1 << 20;
  one.num_sms = 1;
  for (const AttentionShape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.heads.num_heads << "/" << shape.heads.num_kv_heads
                                    << " d " << shape.heads.head_dim);
    AttentionCase c(&random, shape.dtype, shape.heads, {1, 40, 257, 1500, 4099});
    for (const auto& [sequence, position] : std::vector<std::pair<int, int>>{{0, 0},
                                                                             {1, 39},
                                                                             {1, 15},
                                                                             {1, 16},
                                                                             {0, -1},
                                                                             {2, 256},
                                                                             {2, 255},
                                                                             {3, 1499},
                                                                             {3, 511},
                                                                             {3, 512},
                                                                             {4, 4098},
                                                                             {4, 3000},
                                                                             {4, 0},
                                                                             {2, -1},
                                                                             {3, 767}}) {
      c.AddRow(&random, sequence, position);
    }
    const AttentionRun run(c);
    const std::vector<float> whole = run.Run(0, c.rows(), one, 4098);
    ExpectAll(c, whole);
    ExpectAll(c, run.Run(0, c.rows(), limits_, 4098, Kernels::kSimple));
    const int64_t width = c.heads.q_width();
    const auto same = [&](const std::vector<float>& part, int64_t first) {
      for (int64_t i = 0; i < static_cast<int64_t>(part.size()); ++i) {
        if (c.positions[first + i / width] < 0) continue;
        if (part[i] != whole[first * width + i]) return false;
      }
      return true;
    };
    EXPECT_TRUE(same(run.Run(0, c.rows(), many, 4098), 0)) << "split";
    EXPECT_TRUE(same(run.Run(0, c.rows(), many, 30000), 0)) << "split, with a loose bound";
    EXPECT_TRUE(same(run.Run(0, c.rows(), limits_, 4098), 0)) << "this GPU's plan";
    for (int64_t t = 0; t < c.rows(); ++t) {
      if (c.positions[t] < 0) continue;
      for (const DeviceLimits* limits : {&one, &many}) {
        EXPECT_TRUE(same(run.Run(t, 1, *limits, c.positions[t]), t)) << "row " << t << " alone";
      }
    }
  }
}

TEST_F(CudaAttentionTest, PrefillRowsHaveTheBitsOfDecode) {
  Random random(2);
  for (const AttentionShape& shape : kShapes) {
    AttentionCase c(&random, shape.dtype, shape.heads, {530});
    for (int32_t p = 0; p < 530; ++p) c.AddRow(&random, 0, p);
    const AttentionRun run(c);
    const std::vector<float> whole = run.Run(0, 530, limits_, 529);
    const int64_t width = c.heads.q_width();
    for (const int64_t p : {0, 7, 15, 16, 100, 255, 256, 300, 511, 512, 529}) {
      for (int64_t h = 0; h < c.heads.num_heads; ++h) {
        ExpectAttention(c, p, h, whole.data() + p * width + h * c.heads.head_dim);
      }
      const std::vector<float> alone = run.Run(p, 1, limits_, 529);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + p * width)) << p;
    }
    for (const Kernels kernels : {Kernels::kAlone, Kernels::kTiles, Kernels::kPortableTiles}) {
      const std::vector<float> chunk = run.Run(200, 77, limits_, 529, kernels);
      EXPECT_TRUE(std::equal(chunk.begin(), chunk.end(), whole.begin() + 200 * width));
    }
    EXPECT_EQ(run.Run(0, 530, limits_, 529, Kernels::kTiles), whole);
    EXPECT_EQ(run.Run(0, 530, limits_, 529, Kernels::kPortableTiles), whole);
  }
}

// Decode rows, prompts from their beginning and from anywhere, prompts of a shared prefix, runs too
// short for a tile, padding between them.
TEST_F(CudaAttentionTest, TilesHaveTheBitsOfRowsAlone) {
  Random random(3);
  for (const int64_t d : {64, 128}) {
    for (int64_t group = 1; group <= 8; ++group) {
      SCOPED_TRACE(testing::Message() << "d " << d << " group " << group);
      AttentionCase c(&random, DType::kBFloat16, {2 * group, 2, d},
                      {300, 1103, 777, 530, 65, 2100, 19});
      c.ShareBlocks(1, 2, 23);
      c.ShareBlocks(1, 3, 23);
      c.AddRow(&random, 0, 299);
      c.AddRows(&random, 1, 0, 143);
      c.AddRow(&random, 5, 2099);
      c.AddRows(&random, 2, 369, 300);
      c.AddRows(&random, 3, 371, 5);
      c.AddRow(&random, 0, -1);
      c.AddRow(&random, 0, -1);
      c.AddRows(&random, 3, 509, 21);
      c.AddRows(&random, 4, 0, 65);
      c.AddRows(&random, 4, 62, 3);  // too short; and the same positions again
      c.AddRows(&random, 5, 1019, 45);
      c.AddRows(&random, 6, 0, 4);
      c.AddRows(&random, 1, 1102, 1);
      c.AddRow(&random, 0, -1);
      const AttentionRun run(c);
      const std::vector<float> alone = run.Run(0, c.rows(), limits_, 2099);
      const int64_t width = c.heads.q_width();
      for (const Kernels kernels : {Kernels::kTiles, Kernels::kPortableTiles}) {
        const std::vector<float> tiles = run.Run(0, c.rows(), limits_, 2099, kernels);
        for (int64_t t = 0; t < c.rows(); ++t) {
          const auto first = tiles.begin() + t * width;
          if (c.positions[t] < 0) {
            ASSERT_TRUE(std::all_of(first, first + width, [](float x) { return std::isnan(x); }));
            continue;
          }
          ASSERT_TRUE(std::equal(first, first + width, alone.begin() + t * width)) << "row " << t;
          if (t % 17 != 0) continue;
          for (int64_t h = 0; h < c.heads.num_heads; ++h) {
            ExpectAttention(c, t, h, tiles.data() + t * width + h * d);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda

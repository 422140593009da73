// The tiles of attention's gradient: every visible (query, key) pair once, whatever is shared.
#include "kernels/attention/attention_grad_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/kernels/random_data.h"

namespace orrery::kernels::cuda {
namespace {

SequenceSpan Span(int64_t first_row, int64_t num_rows, int64_t first_position = 0,
                  int64_t prefix_first_row = -1) {
  SequenceSpan span;
  span.first_row = first_row;
  span.num_rows = num_rows;
  span.first_position = first_position;
  span.prefix_first_row = prefix_first_row;
  return span;
}

using Pairs = std::multiset<std::pair<int64_t, int64_t>>;  // (query row, key row)

Pairs Expected(const std::vector<SequenceSpan>& spans) {
  Pairs pairs;
  for (const SequenceSpan& s : spans) {
    for (int64_t q = s.first_row; q < s.first_row + s.num_rows; ++q) {
      for (int64_t p = 0; p < s.first_position; ++p) pairs.insert({q, s.prefix_first_row + p});
      for (int64_t k = s.first_row; k <= q; ++k) pairs.insert({q, k});
    }
  }
  return pairs;
}

Pairs OfQueryTiles(const AttentionGradPlan& plan) {
  Pairs pairs;
  for (const QueryTile& tile : plan.query_tiles) {
    for (int64_t q = tile.first_row; q < tile.first_row + tile.num_rows; ++q) {
      for (int64_t p = 0; p < tile.prefix_rows; ++p) pairs.insert({q, tile.prefix_first_row + p});
      for (int64_t k = tile.span_first_row; k <= q; ++k) pairs.insert({q, k});
    }
  }
  return pairs;
}

Pairs OfKeyTiles(const AttentionGradPlan& plan) {
  Pairs pairs;
  for (const KeyTile& tile : plan.key_tiles) {
    for (int32_t i = 0; i < tile.num_runs; ++i) {
      const QueryRun& run = plan.runs[tile.first_run + i];
      for (int64_t q = run.first_row; q < run.first_row + run.num_rows; ++q) {
        const int64_t end = run.key_end < 0 ? q + 1 : run.key_end;
        for (int64_t k = tile.first_row; k < std::min<int64_t>(end, tile.first_row + tile.num_rows);
             ++k) {
          pairs.insert({q, k});
        }
      }
    }
  }
  return pairs;
}

void ExpectCovers(const std::vector<SequenceSpan>& spans, const HeadShape& heads, DType dtype) {
  const AttentionGradPlan plan = PlanAttentionGrad(spans, heads, dtype, H200Limits());
  const AttentionGradTile size = SizeOfAttentionGradTile(heads, plan.tensor_cores);
  const Pairs expected = Expected(spans);
  EXPECT_EQ(OfQueryTiles(plan), expected);
  EXPECT_EQ(OfKeyTiles(plan), expected);
  for (const QueryTile& t : plan.query_tiles) {
    EXPECT_TRUE(t.num_rows > 0 && t.num_rows <= size.query_rows);
  }
  for (const KeyTile& t : plan.key_tiles) {
    EXPECT_TRUE(t.num_rows > 0 && t.num_rows <= size.key_rows);
  }
  EXPECT_EQ(plan.Words().size(), 5 * plan.query_tiles.size() + 5 * plan.key_tiles.size() +
                                     3 * plan.runs.size() + 4 * plan.sums.size());
}

const HeadShape kHeads[] = {{16, 8, 128}, {9, 3, 64}, {16, 1, 64}, {4, 4, 128}, {4, 2, 80}};

TEST(AttentionGradPlan, CoversEveryVisiblePairOnce) {
  for (const HeadShape& heads : kHeads) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      ExpectCovers({}, heads, dtype);
      ExpectCovers({Span(0, 1)}, heads, dtype);
      ExpectCovers({Span(0, 0), Span(0, 129), Span(129, 64), Span(193, 1)}, heads, dtype);
      // A prompt of 70 and five that continue it, one of them by a single token.
      ExpectCovers({Span(0, 70), Span(70, 30, 70, 0), Span(100, 1, 70, 0), Span(101, 65, 70, 0),
                    Span(166, 40)},
                   heads, dtype);
      // Continued from its middle, too.
      ExpectCovers({Span(0, 70), Span(70, 30, 64, 0), Span(100, 9, 70, 0), Span(109, 3, 1, 0)},
                   heads, dtype);
    }
  }
}

TEST(AttentionGradPlan, RandomFamiliesAreCovered) {
  Random random(5);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<SequenceSpan> spans;
    int64_t rows = 0;
    while (rows < 400) {
      const int64_t prefix = random.Pick(1, 90), prefix_row = rows;
      spans.push_back(Span(rows, prefix));
      rows += prefix;
      for (int64_t n = random.Pick(0, 4); n > 0; --n) {
        const int64_t own = random.Pick(1, 80);
        spans.push_back(Span(rows, own, prefix, prefix_row));
        rows += own;
      }
    }
    ExpectCovers(spans, kHeads[trial % 5], DType::kBFloat16);
  }
}

TEST(AttentionGradPlan, DependentsSideBySideAreOneRun) {
  std::vector<SequenceSpan> spans = {Span(0, 60)};
  for (int i = 0; i < 8; ++i) spans.push_back(Span(60 + 20 * i, 20, 60, 0));
  const AttentionGradPlan plan =
      PlanAttentionGrad(spans, {9, 3, 64}, DType::kBFloat16, H200Limits());
  const KeyTile& longest = plan.key_tiles[0];
  EXPECT_EQ(longest.first_row, 0);
  ASSERT_EQ(longest.num_runs, 2);
  EXPECT_EQ(plan.runs[longest.first_run + 1].num_rows, 160);
}

TEST(AttentionGradPlan, APromptOfManySamplesIsShared) {
  std::vector<SequenceSpan> spans = {Span(0, 70)};
  int64_t rows = 70;
  for (int i = 0; i < 40; ++i, rows += 51) spans.push_back(Span(rows, 51, 70, 0));
  ExpectCovers(spans, {9, 3, 64}, DType::kBFloat16);
  const AttentionGradPlan plan =
      PlanAttentionGrad(spans, {9, 3, 64}, DType::kBFloat16, H200Limits());
  ASSERT_EQ(plan.sums.size(), 2u);
  int64_t partials = 0;
  for (const KeySum& sum : plan.sums) {
    EXPECT_GT(sum.num_partials, 3);
    EXPECT_EQ(sum.first_partial, partials);
    partials += sum.num_partials;
    int64_t tiles = 0;
    for (const KeyTile& tile : plan.key_tiles) {
      if (tile.first_row != sum.first_row) continue;
      ++tiles;
      EXPECT_EQ(tile.num_rows, sum.num_rows);
      EXPECT_TRUE(tile.partial >= sum.first_partial &&
                  tile.partial < sum.first_partial + sum.num_partials);
    }
    EXPECT_EQ(tiles, sum.num_partials);
  }
  EXPECT_EQ(plan.num_partials, partials);
  // Sequences of their own keep the GPU busy without that.
  std::vector<SequenceSpan> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(Span(2048 * i, 2048));
  EXPECT_TRUE(PlanAttentionGrad(alone, {16, 8, 128}, DType::kBFloat16, H200Limits()).sums.empty());
}

TEST(AttentionGradPlan, LongestFirst) {
  const std::vector<SequenceSpan> spans = {Span(0, 300), Span(300, 2000)};
  const AttentionGradPlan plan =
      PlanAttentionGrad(spans, {16, 8, 128}, DType::kBFloat16, H200Limits());
  EXPECT_EQ(plan.query_tiles[0].first_row + plan.query_tiles[0].num_rows, 2300);
  const auto queries = [&](const KeyTile& tile) {
    int64_t rows = 0;
    for (int32_t i = 0; i < tile.num_runs; ++i) rows += plan.runs[tile.first_run + i].num_rows;
    return rows;
  };
  for (size_t i = 1; i < plan.key_tiles.size(); ++i) {
    EXPECT_GE(queries(plan.key_tiles[i - 1]), queries(plan.key_tiles[i]));
  }
}

TEST(AttentionGradPlan, TensorCoresWhereTheyFit) {
  const std::vector<SequenceSpan> spans = {Span(0, 3)};
  const auto fits = [&](const HeadShape& heads, DType dtype, const DeviceLimits& limits) {
    return PlanAttentionGrad(spans, heads, dtype, limits).tensor_cores;
  };
  EXPECT_TRUE(fits({32, 4, 128}, DType::kBFloat16, H200Limits()));
  EXPECT_FALSE(fits({32, 4, 128}, DType::kFloat32, H200Limits()));
  EXPECT_FALSE(fits({32, 4, 128}, DType::kBFloat16, RubinLimits()));
  EXPECT_FALSE(fits({34, 2, 128}, DType::kBFloat16, H200Limits()));
  EXPECT_FALSE(fits({8, 4, 80}, DType::kBFloat16, H200Limits()));
}

TEST(AttentionGradPlanDeathTest, RejectsAPrefixThatIsNotThere) {
  const auto plan = [](const std::vector<SequenceSpan>& spans) {
    return PlanAttentionGrad(spans, {16, 8, 128}, DType::kBFloat16, H200Limits());
  };
  EXPECT_DEATH(plan({Span(0, 5, 3, -1)}), "beginning is not in the batch");
  EXPECT_DEATH(plan({Span(0, 5), Span(5, 5, 6, 0)}), "prefix of 6 rows");
  EXPECT_DEATH(plan({Span(0, 5), Span(5, 5, 3, 1)}), "from row 1");
}

}  // namespace
}  // namespace orrery::kernels::cuda

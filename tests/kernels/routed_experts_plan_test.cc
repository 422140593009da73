// Tiles of the experts' products, by the tables of the GPUs.
#include "kernels/experts/routed_experts_plan.h"

#include <gtest/gtest.h>

#include "kernels/experts/routed_experts.h"

namespace orrery::kernels::cuda {
namespace {

constexpr ExpertsShape kQwen3{128, 8, 2048, 768, true};  // Qwen3-30B-A3B

GroupedProduct GateUp(int64_t rows, const ExpertsShape& shape = kQwen3) {
  return {rows * shape.top_k, shape.num_experts, shape.f, shape.d, true};
}
GroupedProduct Down(int64_t rows, const ExpertsShape& shape = kQwen3) {
  return {rows * shape.top_k, shape.num_experts, shape.d, shape.f, false};
}

TEST(PlanGroupedTest, TilesGrowWithTheRowsOfAnExpert) {
  const DeviceLimits h200 = H200Limits();
  EXPECT_EQ(PlanGrouped(GateUp(1), h200), GroupedTile::kThin);
  EXPECT_EQ(PlanGrouped(Down(1), h200), GroupedTile::kThin);
  EXPECT_EQ(PlanGrouped(Down(2), h200), GroupedTile::kFew);
  EXPECT_EQ(PlanGrouped(GateUp(8), h200), GroupedTile::kFew);
  EXPECT_EQ(PlanGrouped(Down(8), h200), GroupedTile::kBlock);
  for (const int64_t rows : {16, 64, 256, 512, 1023}) {
    EXPECT_EQ(PlanGrouped(GateUp(rows), h200), GroupedTile::kBlock) << rows;
    EXPECT_EQ(PlanGrouped(Down(rows), h200), GroupedTile::kBlock) << rows;
  }
  EXPECT_EQ(PlanGrouped(GateUp(1024), h200), GroupedTile::kCluster);
  EXPECT_EQ(PlanGrouped(Down(1024), h200), GroupedTile::kCluster);
}

// Two hidden columns too many for slabs of 64, or another generation's instructions.
TEST(PlanGroupedTest, WithoutWarpgroupProductsTilesAreSmaller) {
  const ExpertsShape odd{128, 8, 2048 + 16, 768, true};
  EXPECT_EQ(PlanGrouped(GateUp(64, odd), H200Limits()), GroupedTile::kSome);
  for (const DeviceLimits& limits : {B200Limits(), RubinLimits()}) {
    EXPECT_EQ(PlanGrouped(GateUp(8), limits), GroupedTile::kFew);
    EXPECT_EQ(PlanGrouped(GateUp(64), limits), GroupedTile::kSome);
    EXPECT_EQ(PlanGrouped(GateUp(256), limits), GroupedTile::kMore);
    EXPECT_EQ(PlanGrouped(GateUp(8192), limits), GroupedTile::kMany);
  }
}

// Eight wide experts are many tiles at one row each; of few narrow ones each SM would have none.
TEST(PlanGroupedTest, EverySmGetsWork) {
  const ExpertsShape wide{8, 2, 4096, 14336, true}, narrow{8, 2, 256, 128, true};
  EXPECT_EQ(PlanGrouped(GateUp(4, wide), H200Limits()), GroupedTile::kBlock);
  EXPECT_EQ(PlanGrouped(GateUp(100, narrow), H200Limits()), GroupedTile::kMany);
}

// Of experts that nearly all get rows, as many as blocks need for one tile each.
TEST(GuessedExpertsTest, EveryBlockHasATileWhereNearlyAllExpertsGetRows) {
  EXPECT_EQ(GuessedExperts(8 * 63, 128, 6, H200Limits()), 0);
  EXPECT_EQ(GuessedExperts(8 * 64, 128, 6, H200Limits()), 22);
  EXPECT_EQ(GuessedExperts(8 * 64, 128, 6, RubinLimits()), 36);
  EXPECT_EQ(GuessedExperts(100, 8, 1, H200Limits()), 8);  // all there are
}

}  // namespace
}  // namespace orrery::kernels::cuda

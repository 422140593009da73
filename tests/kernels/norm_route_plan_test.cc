// Which layers the fused norm, router and choice of experts takes, by the tables of H200, B200 and
// Rubin.
#include "kernels/experts/norm_route_plan.h"

#include <gtest/gtest.h>

namespace orrery::kernels::cuda {
namespace {

const DeviceLimits kDevices[] = {H200Limits(), B200Limits(), RubinLimits()};
constexpr DType kType = DType::kBFloat16;

TEST(NormRoutePlan, FewRowsHaveAClusterEach) {
  for (const DeviceLimits& device : kDevices) {
    for (const int64_t rows : {1, 2, 8, 16}) {
      const NormRoutePlan plan = PlanNormRoute(kType, rows, 2048, 128, device);
      EXPECT_EQ(plan.rows, 1) << rows;
      // 16 of 128 experts and the row, padded by 16 bytes.
      EXPECT_EQ(plan.shared_bytes, 17 * (2 * 2048 + 16));
    }
  }
}

TEST(NormRoutePlan, MoreRowsShareAClusterOnceSmsRunOut) {
  // 16, 18 and 26 clusters of eight SMs.
  const auto rows = [](int64_t n, const DeviceLimits& device) {
    return PlanNormRoute(kType, n, 2048, 128, device).rows;
  };
  EXPECT_EQ(rows(17, H200Limits()), 2);
  EXPECT_EQ(rows(17, B200Limits()), 1);
  EXPECT_EQ(rows(26, RubinLimits()), 1);
  EXPECT_EQ(rows(27, RubinLimits()), 2);
  EXPECT_EQ(rows(64, H200Limits()), 4);
  EXPECT_EQ(rows(64, RubinLimits()), 4);
  EXPECT_EQ(rows(65, H200Limits()), 0) << "beyond the bound";
}

TEST(NormRoutePlan, WhatItTakesFits) {
  for (const DeviceLimits& device : kDevices) {
    for (const int64_t experts : {2, 8, 60, 128, 256, 512}) {
      for (const int64_t d : {16, 256, 1008, 2048, 4096}) {
        for (int64_t rows = 1; rows <= 64; ++rows) {
          const NormRoutePlan plan = PlanNormRoute(kType, rows, d, experts, device);
          if (!plan) continue;
          const int64_t tiles = (experts + 127) / 128;  // of 16 experts, of the busiest block
          ASSERT_GE(plan.shared_bytes, (16 * tiles + plan.rows) * (2 * d + 16));
          ASSERT_LT(plan.shared_bytes + 8192, device.shared_bytes_per_block);
          ASSERT_TRUE(plan.rows == 1 || plan.rows == 2 || plan.rows == 4);
        }
      }
    }
  }
}

TEST(NormRoutePlan, RefusesWhatDoesNotFit) {
  const DeviceLimits device = H200Limits();
  EXPECT_TRUE(PlanNormRoute(kType, 1, 4096, 128, device)) << "Qwen3-235B-A22B";
  EXPECT_TRUE(PlanNormRoute(kType, 1, 2048, 256, device));
  EXPECT_FALSE(PlanNormRoute(kType, 1, 2048, 512, device)) << "64 experts a block: 263 KB";
  EXPECT_FALSE(PlanNormRoute(DType::kFloat32, 1, 2048, 128, device));
  EXPECT_FALSE(PlanNormRoute(kType, 0, 2048, 128, device));
  EXPECT_FALSE(PlanNormRoute(kType, 1, 2056, 128, device)) << "not whole steps of 16";
  EXPECT_FALSE(PlanNormRoute(kType, 1, 8192, 8, device));
  EXPECT_FALSE(PlanNormRoute(kType, 1, 0, 128, device));
  EXPECT_FALSE(PlanNormRoute(kType, 1, 256, 514, device));
  EXPECT_FALSE(PlanNormRoute(kType, 1, 256, 7, device)) << "Linear takes its simple kernel";
  EXPECT_FALSE(PlanNormRoute(kType, 1, 256, 0, device));
}

TEST(NormRoutePlan, RefusesWhereThereAreNoClusters) {
  DeviceLimits device = H200Limits();
  for (const int architecture : {80, 89, 120, 121}) {
    device.architecture = architecture;
    EXPECT_FALSE(PlanNormRoute(kType, 1, 2048, 128, device)) << architecture;
  }
  device = H200Limits();
  device.num_sms = 7;  // a slice of a GPU
  EXPECT_FALSE(PlanNormRoute(kType, 1, 2048, 128, device));
  device.num_sms = 16;
  EXPECT_TRUE(PlanNormRoute(kType, 1, 2048, 128, device));
  EXPECT_EQ(PlanNormRoute(kType, 8, 2048, 128, device).rows, 4);
  EXPECT_FALSE(PlanNormRoute(kType, 64, 2048, 128, device)) << "eight times its clusters";
}

}  // namespace
}  // namespace orrery::kernels::cuda

#include "orchestrator/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"

namespace orrery::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGb = 1000 * 1000 * 1000;

MemoryNeeds Needs() {
  MemoryNeeds needs;
  needs.gpu = {{"weights", 10 * kGb}, {"gradients", 20 * kGb}};
  needs.optimizer = {{"master weights", 20 * kGb}, {"moments", 40 * kGb}};
  needs.staging = {{"staging", kGb}};
  needs.training = {{"activations", 25 * kGb}};
  needs.host = {{"weights", 20 * kGb}};
  needs.kv = {.block_bytes = kGb / 10, .block_tokens = 16, .wanted = 300, .least = 4};
  return needs;
}

MemoryLimits Limits(int64_t gpu_gb) {
  return {"made up", gpu_gb * kGb, kGb, /*gpu_page_bytes=*/1, 1000 * kGb};
}

TEST(MemoryPlanTest, WhatFitsIsLeftAsItIs) {
  const MemoryPlan plan = Decide(Needs(), Limits(146));
  EXPECT_FALSE(plan.kv_lends || plan.offloaded);
  EXPECT_EQ(plan.kv_blocks, 300);
  EXPECT_EQ(plan.gpu_bytes(), 145 * kGb);
  EXPECT_TRUE(CheckFits(plan).ok());
}

TEST(MemoryPlanTest, LendingIsTheFirstResort) {
  const MemoryPlan plan = Decide(Needs(), Limits(145));
  EXPECT_TRUE(plan.kv_lends);
  EXPECT_FALSE(plan.offloaded);
  EXPECT_EQ(plan.kv_blocks, 300);
  EXPECT_EQ(plan.gpu_bytes(), 120 * kGb);  // the larger of the two
}

TEST(MemoryPlanTest, ThenASmallerCache) {
  const MemoryPlan plan = Decide(Needs(), Limits(118));
  EXPECT_TRUE(plan.kv_lends);
  EXPECT_FALSE(plan.offloaded);
  EXPECT_EQ(plan.kv_blocks, 270);
  EXPECT_EQ(plan.gpu_bytes(), 117 * kGb);
}

TEST(MemoryPlanTest, SamplesAreTheHosts) {
  MemoryNeeds needs = Needs();
  needs.samples = {{"samples", 50 * kGb}};
  MemoryLimits limits = Limits(146);
  limits.host_bytes = 70 * kGb;
  EXPECT_EQ(Decide(needs, limits).host_bytes(), 70 * kGb);
  EXPECT_TRUE(CheckFits(Decide(needs, limits)).ok());
  EXPECT_THAT(PlanText(Decide(needs, limits)), HasSubstr("samples"));
  --limits.host_bytes;
  EXPECT_THAT(std::string(CheckFits(Decide(needs, limits)).message()),
              HasSubstr("lower rollout.prompts_per_step, lower sampling.max_new_tokens"));
  EXPECT_THAT(PlanText(Decide(needs, limits)), Not(HasSubstr("max_refills")));
  needs.refills = true;
  EXPECT_THAT(PlanText(Decide(needs, limits)), HasSubstr("every refill of algorithm.max_refills"));
  EXPECT_THAT(std::string(CheckFits(Decide(needs, limits)).message()),
              HasSubstr("lower algorithm.max_refills, lower sampling.max_new_tokens"));
  // On the host alone the cache has what they leave.
  needs = {.host = {{"weights", 20 * kGb}}, .samples = needs.samples, .kv = needs.kv};
  const MemoryPlan alone = Decide(needs, {.host_bytes = 80 * kGb});
  EXPECT_EQ(alone.kv_blocks, 100);
  EXPECT_EQ(alone.host_bytes(), 80 * kGb);
}

// 25 of activations do not fit beside 90: only the host's memory helps. All of the cache fits then.
TEST(MemoryPlanTest, ThenTheHost) {
  const MemoryPlan plan = Decide(Needs(), Limits(115));
  EXPECT_TRUE(plan.offloaded);
  EXPECT_FALSE(plan.kv_lends);
  EXPECT_EQ(plan.kv_blocks, 300);
  EXPECT_EQ(plan.gpu_bytes(), 86 * kGb);
  EXPECT_EQ(plan.host_bytes(), 80 * kGb);
  MemoryNeeds never = Needs();
  never.offload = Offload::kNever;
  const absl::Status refused = CheckFits(Decide(never, Limits(115)));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("trainer.optimizer_offload"));
}

TEST(MemoryPlanTest, ASingleSequenceIsTheLeast) {
  const MemoryPlan plan = Decide(Needs(), Limits(57));  // 31 fixed, 25 of activations
  EXPECT_TRUE(plan.offloaded && plan.kv_lends);
  EXPECT_EQ(plan.kv_blocks, 250);
  const MemoryPlan refused = Decide(Needs(), Limits(56));
  EXPECT_FALSE(CheckFits(refused).ok());
  EXPECT_EQ(refused.kv_blocks, 4);
}

TEST(MemoryPlanTest, AFixedCacheIsAllOrNothing) {
  MemoryNeeds needs = Needs();
  needs.kv.fixed = true;
  EXPECT_EQ(Decide(needs, Limits(118)).kv_blocks, 300);
  EXPECT_TRUE(Decide(needs, Limits(118)).offloaded);
  const MemoryPlan refused = Decide(needs, Limits(61));
  EXPECT_EQ(refused.kv_blocks, 300);
  const absl::Status status = CheckFits(refused);
  EXPECT_THAT(std::string(status.message()), HasSubstr("61.00 GB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rollout.kv_tokens"));
}

TEST(MemoryPlanTest, ASampledModelHasNothingToLendTo) {
  MemoryNeeds needs;
  needs.gpu = {{"weights", 10 * kGb}};
  needs.kv = Needs().kv;
  const MemoryPlan plan = Decide(needs, Limits(21));
  EXPECT_FALSE(plan.kv_lends || plan.offloaded);
  EXPECT_EQ(plan.kv_blocks, 100);
}

TEST(MemoryPlanTest, TheHostIsALimitToo) {
  MemoryLimits limits = Limits(115);
  limits.host_bytes = 70 * kGb;
  const absl::Status status = CheckFits(Decide(Needs(), limits));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("80.00 GB of the host's memory"));
}

TEST(MemoryPlanTest, SwappedKeysAndValuesAreTheHosts) {
  MemoryNeeds needs = Needs();
  needs.kv.swap = 500;
  MemoryLimits limits = Limits(146);
  limits.host_bytes = 70 * kGb;
  const MemoryPlan plan = Decide(needs, limits);
  EXPECT_EQ(plan.host_bytes(), 70 * kGb);
  EXPECT_EQ(plan.gpu_bytes(), 145 * kGb);
  EXPECT_TRUE(CheckFits(plan).ok());
  EXPECT_THAT(PlanText(plan), HasSubstr("swapped keys and values of 8000 tokens, pinned"));
  --limits.host_bytes;
  const absl::Status refused = CheckFits(Decide(needs, limits));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lower rollout.swap_tokens"));
  // On the host alone the cache has what they leave.
  needs = {.host = {{"weights", 20 * kGb}}, .kv = needs.kv};
  const MemoryPlan alone = Decide(needs, {.host_bytes = 80 * kGb});
  EXPECT_EQ(alone.kv_blocks, 100);
  EXPECT_EQ(alone.host_bytes(), 80 * kGb);
}

TEST(MemoryPlanTest, OnTheHostAloneTheCacheIsItsOwn) {
  MemoryNeeds needs;
  needs.host = {{"weights", 20 * kGb}};
  needs.kv = Needs().kv;
  const MemoryPlan plan = Decide(needs, {.host_bytes = 30 * kGb});
  EXPECT_EQ(plan.kv_blocks, 100);
  EXPECT_EQ(plan.host_bytes(), 30 * kGb);
  EXPECT_TRUE(CheckFits(plan).ok());
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("on the GPU")));
}

TEST(MemoryPlanTest, TheTextNamesEveryPart) {
  const std::string text = PlanText(Decide(Needs(), Limits(118)));
  for (const char* part : {"weights", "gradients", "master weights", "moments", "activations",
                           "keys and values of 4320 tokens", "117.00 GB", "it fits", "turn by turn",
                           "4320 of the 4800 tokens"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(MemoryPlanTest, TheSummaryIsOneLine) {
  const std::string line = Summary(Decide(Needs(), Limits(57)));
  EXPECT_EQ(line,
            "56.00 GB of 57.00 GB on the GPU, 80.00 GB on the host; keys and values of 4000 "
            "tokens, which lend their memory to the trainer; master weights and moments on the "
            "host");
}

// A plan that fits stays within the limits; one that does not says what is missing; pages count.
TEST(MemoryPlanTest, AnyNumbersMakeAPlan) {
  RandomStream random(HashSeed({5}));
  const auto pick = [&](int64_t most) {
    return static_cast<int64_t>(random.Uniform() * static_cast<double>(most));
  };
  int fitted = 0;
  for (int i = 0; i < 2000; ++i) {
    MemoryNeeds needs;
    needs.gpu = {{"a", pick(50 * kGb)}};
    needs.optimizer = {{"b", pick(100 * kGb)}};
    needs.staging = {{"c", pick(kGb)}};
    needs.training = {{"d", pick(50 * kGb)}};
    needs.kv.block_bytes = 1 + pick(10'000'000);
    needs.kv.wanted = 1 + pick(10000);
    needs.kv.least = 1 + pick(100);
    needs.kv.fixed = random.Uniform() < 0.3;
    needs.offload = static_cast<Offload>(pick(3));
    const MemoryLimits limits{"made up", 1 + pick(150 * kGb), pick(kGb), 1 + pick(100'000'000),
                              1000 * kGb};
    const MemoryPlan plan = Decide(needs, limits);
    EXPECT_GE(plan.kv_blocks, 1);
    EXPECT_LE(plan.kv_blocks, needs.kv.wanted);
    EXPECT_TRUE(!needs.kv.fixed || plan.kv_blocks == needs.kv.wanted);
    EXPECT_FALSE(needs.offload == Offload::kNever && plan.offloaded);
    EXPECT_FALSE(needs.offload == Offload::kAlways && !plan.offloaded);
    EXPECT_EQ(CheckFits(plan).ok(), plan.fits_gpu() && plan.fits_host());
    if (!plan.fits_gpu()) continue;
    ++fitted;
    EXPECT_LE(plan.gpu_bytes() + limits.gpu_spare_bytes, limits.gpu_bytes);
    EXPECT_GE(plan.kv_bytes(), plan.kv_blocks * needs.kv.block_bytes);
  }
  EXPECT_GT(fitted, 200);
}

// A plan that no experiment decides, as a measurement's.
TEST(MemoryPlanTest, AFixOfItsOwnAndNoKeysAndValues) {
  MemoryPlan plan;
  plan.limits = LimitsOfGpu(/*architecture=*/90, 100 * kGb, /*page_bytes=*/1 << 20);
  plan.needs.gpu = TakenUnasked(7 * kGb);
  plan.needs.training = {{"activations", 90 * kGb}};
  EXPECT_TRUE(CheckFits(plan, "lower it").ok());
  plan.needs.training.front().bytes += 2 * kGb;  // 99.54 and the driver's half
  EXPECT_EQ(std::string(CheckFits(plan, "lower it").message()),
            "it takes 99.54 GB of the GPU's memory, and 99.46 GB are there (compute capability "
            "9.0): activations 92.00 GB, taken before: driver, other programs 7.00 GB, code of "
            "kernels and libraries 536.9 MB; lower it");
}

}  // namespace
}  // namespace orrery::plan

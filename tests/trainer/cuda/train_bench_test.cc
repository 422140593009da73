// What `orrery bench train` refuses before it takes anything; needs no GPU.
#include "trainer/cuda/train_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/model/known_shapes.h"

namespace orrery::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// As its driver says, beside the driver's own.
kernels::DeviceLimits H200() {
  kernels::DeviceLimits device = kernels::H200Limits();
  device.memory_bytes = int64_t{143155} << 20;
  device.free_bytes = device.memory_bytes - (int64_t{600} << 20);
  return device;
}

model::ModelSpec Shape(const char* name, int64_t layers) {
  return model::FirstLayers(*model::KnownShape(name), layers);
}

absl::Status Check(const char* name, int64_t layers, bool recompute,
                   const kernels::DeviceLimits& device = H200()) {
  TrainBenchOptions options;
  options.recompute = recompute;
  return CheckTrainBench(PlanTrainBench(Shape(name, layers), options, device), options);
}

TEST(TrainBenchTest, WhatDoesNotFitIsRefusedWithNumbersAndTheFix) {
  const absl::Status refused = Check("qwen3-8b", 26, /*recompute=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  // 143155 MiB without the spare.
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("149.57 GB are there (compute capability 9.0)"),
                    HasSubstr("activations and logits of a micro-batch"), HasSubstr("--layers"),
                    HasSubstr("--recompute"), Not(HasSubstr("trainer.")),
                    Not(HasSubstr("keys and values"))));
  const absl::Status again = Check("qwen3-8b", 36, /*recompute=*/true);
  EXPECT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.message()), Not(HasSubstr("--recompute")));
}

// Those of BENCHMARKS.md.
TEST(TrainBenchTest, WhatRanOnAnH200Fits) {
  EXPECT_TRUE(Check("qwen3-1.7b", 28, /*recompute=*/false).ok());
  EXPECT_TRUE(Check("qwen3-8b", 26, /*recompute=*/true).ok());
  EXPECT_TRUE(Check("qwen3-30b-a3b", 9, /*recompute=*/false).ok());
}

TEST(TrainBenchTest, OtherProgramsMemoryCounts) {
  kernels::DeviceLimits busy = H200();
  busy.free_bytes -= int64_t{40} << 30;
  const absl::Status refused = Check("qwen3-8b", 26, /*recompute=*/true, busy);
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("other programs 43.58 GB"));
}

}  // namespace
}  // namespace orrery::trainer

// What `orrery bench decode`, prefill and phase take of a GPU and refuse; needs none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rollout/cuda/decode_bench.h"
#include "rollout/cuda/rollout_bench.h"
#include "trainer/model/known_shapes.h"

namespace orrery::rollout::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGb = int64_t{1} << 30;

kernels::DeviceLimits H200(int64_t free_gb = 139) {
  kernels::DeviceLimits device = kernels::H200Limits();
  device.memory_bytes = int64_t{143155} << 20;
  device.free_bytes = std::min(free_gb * kGb, device.memory_bytes - (int64_t{600} << 20));
  return device;
}

absl::Status CheckDecode(const char* shape, int64_t batch, int64_t context,
                         const kernels::DeviceLimits& device = H200()) {
  DecodeBenchOptions options;
  options.batches = {1, batch};
  options.context = context;
  return plan::CheckFits(PlanDecodeBench(*model::KnownShape(shape), options, device), "the fix");
}

plan::MemoryPlan PlanPhase(const kernels::DeviceLimits& device, int64_t kv_tokens = 0) {
  RolloutBenchOptions options;
  options.lengths = {200, 1024};
  options.kv_tokens = kv_tokens;
  return PlanRolloutBench(*model::KnownShape("qwen3-30b-a3b"), options, device);
}

TEST(BenchMemoryTest, DecodeIsRefusedByItsLargestBatch) {
  EXPECT_TRUE(CheckDecode("qwen3-30b-a3b", 512, 1024).ok());
  const absl::Status refused = CheckDecode("qwen3-30b-a3b", 512, 8192);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("149.57 GB are there"), HasSubstr("keys and values of"),
                    HasSubstr("weights 61."), HasSubstr("; the fix"), Not(HasSubstr("rollout."))));
}

// The model's 0.3 GB would fit.
TEST(BenchMemoryTest, DecodeNeedsRoomForTheMeasuredCopy) {
  EXPECT_TRUE(CheckDecode("smollm2-135m", 1, 1024, H200(/*free_gb=*/10)).ok());
  EXPECT_FALSE(CheckDecode("smollm2-135m", 1, 1024, H200(/*free_gb=*/8)).ok());
}

TEST(BenchMemoryTest, APhaseTakesWhatIsFree) {
  const plan::MemoryPlan alone = PlanPhase(H200()), busy = PlanPhase(H200(/*free_gb=*/100));
  EXPECT_TRUE(plan::CheckFits(alone).ok());
  EXPECT_TRUE(plan::CheckFits(busy).ok());
  EXPECT_GT(busy.kv_blocks, 0);
  EXPECT_NEAR(static_cast<double>(alone.kv_bytes() - busy.kv_bytes()),
              static_cast<double>(H200().free_bytes - 100 * kGb), 1e9);
  EXPECT_FALSE(plan::CheckFits(PlanPhase(H200(/*free_gb=*/60))).ok());  // less than the weights
}

TEST(BenchMemoryTest, AskedForTokensAreAllOrNothing) {
  const plan::MemoryPlan fits = PlanPhase(H200(), 16 * 1000);
  EXPECT_EQ(fits.kv_blocks, 1000);
  EXPECT_TRUE(plan::CheckFits(fits).ok());
  EXPECT_FALSE(plan::CheckFits(PlanPhase(H200(), 16 * 1000 * 1000)).ok());
}

}  // namespace
}  // namespace orrery::rollout::cuda

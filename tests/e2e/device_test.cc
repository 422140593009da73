// run.device: cuda on a machine without a GPU: one clear error, nothing created.
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

TEST(Device, CudaWithoutAGpuIsRefused) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU";
  const TempFolder folder;
  const Ended ended = Orrery({"run", SmallExperiment(folder, "a", 2), "--set", "run.device=cuda"});
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_THAT(ended.err, ::testing::HasSubstr("run.device: cuda"));
  EXPECT_THAT(ended.err, ::testing::HasSubstr("run.device: cpu"));
  EXPECT_FALSE(fs::exists(folder / "a"));
}

}  // namespace
}  // namespace orrery::e2e

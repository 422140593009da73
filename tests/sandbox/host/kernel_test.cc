#include "sandbox/host/kernel.h"

#include <gtest/gtest.h>

namespace orrery::sandbox {
namespace {

TEST(KernelTest, OlderOnesAreRefusedByName) {
  for (const char* release : {"6.7.0", "6.8.0-45-generic", "6.18.44-x", "7.0.1", "10.2"}) {
    EXPECT_TRUE(CheckKernel(release).ok()) << release;
  }
  for (const char* release : {"6.1.0-28-amd64", "6.6.3", "5.19.0", "6", "", "x.y"}) {
    const absl::Status refused = CheckKernel(release);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << release;
    EXPECT_NE(refused.ToString().find(release), std::string::npos);
  }
}

TEST(KernelTest, MountsHangSomewhereBeforeDetachedOnesCameAbout) {
  for (const char* release : {"6.15.0", "6.18.44-x", "7.0.1"}) {
    EXPECT_TRUE(HasDetachedMounts(release)) << release;
  }
  for (const char* release : {"6.14.9", "6.8.0-45-generic", "x"}) {
    EXPECT_FALSE(HasDetachedMounts(release)) << release;
  }
}

}  // namespace
}  // namespace orrery::sandbox

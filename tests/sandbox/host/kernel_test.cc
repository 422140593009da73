#include "sandbox/host/kernel.h"

#include <gtest/gtest.h>

namespace orrery::sandbox {
namespace {

TEST(KernelTest, OlderOnesAreRefusedByName) {
  for (const char* release : {"6.15.0", "6.18.44-x", "7.0.1", "10.2"}) {
    EXPECT_TRUE(CheckKernel(release).ok()) << release;
  }
  for (const char* release : {"6.1.0-28-amd64", "6.8.0-45-generic", "5.19.0", "6", "", "x.y"}) {
    const absl::Status refused = CheckKernel(release);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << release;
    EXPECT_NE(refused.ToString().find(release), std::string::npos);
  }
}

}  // namespace
}  // namespace orrery::sandbox

#include "sandbox/host/kernel.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include "sandbox/host/unenforced.h"
#include "tests/sandbox/host/testing.h"

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

// The guests (tests/sandbox/guest) run this under a kernel that is too old and under one that is
// not.
TEST(KernelTest, ThisOneHoldsSandboxesOrIsRefusedBeforeAnythingIsMade) {
  if (::geteuid() != 0) GTEST_SKIP() << "sandboxes need root";
  utsname name{};
  ::uname(&name);
  const absl::Status known = CheckKernel(name.release);
  const WorkFolder work;
  const HostOptions options = TestOptions(work);
  const auto host = MakeLocalHost(options);
  EXPECT_EQ(host.status(), known);
  if (known.ok()) return;
  EXPECT_NE(known.ToString().find("--host"), std::string::npos) << "the fix";
  EXPECT_FALSE(std::filesystem::exists(options.state_folder));
  EXPECT_FALSE(std::filesystem::exists("/sys/fs/cgroup/" + options.cgroup));
}

TEST(KernelTest, WhatCannotBeEnforcedIsSaid) {
  const std::string heading = "Filename\tType\tSize\tUsed\tPriority\n",
                    swap = "/dev/x\tfile\t1\t0\t-2\n";
  const std::string v2 = "30 1 0:1 / /nowhere rw - cgroup2 none rw\n";
  const auto hierarchies = Hierarchies::Parse(v2, "cpu memory pids");
  ASSERT_TRUE(hierarchies.ok()) << hierarchies.status();
  HostOptions options;
  EXPECT_TRUE(FindUnenforced(options, *hierarchies, heading).empty());
  EXPECT_EQ(FindUnenforced(options, *hierarchies, heading + swap).size(), 1u);
  EXPECT_TRUE(FindPitfalls(options, *hierarchies, "0x0007\n").empty()) << "no disk";
  options.disk = DiskBackend::kUnlimited;
  EXPECT_EQ(FindUnenforced(options, *hierarchies, heading).size(), 1u);
  EXPECT_EQ(FindPitfalls(options, *hierarchies, "0x0007\n").size(), 1u);
  EXPECT_TRUE(FindPitfalls(options, *hierarchies, "0x0000\n").empty());
  EXPECT_TRUE(FindPitfalls(options, *hierarchies, "").empty());
}

TEST_F(HostTest, UnenforcedLimitsAreRefusedOrWarnedOf) {
  HostOptions options = TestOptions(work_);
  options.disk = DiskBackend::kUnlimited;
  const auto refused = MakeLocalHost(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  options.allow_unenforced = true;
  const auto host = MakeLocalHost(options);
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_FALSE((*host)->warnings().empty());
  EXPECT_NE((*host)->warnings()[0].find("not limited"), std::string::npos);
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

// Which hierarchy has which controller, on hosts of each kind. Lines as /proc/self/mountinfo has
// them.
#include <gtest/gtest.h>

#include "sandbox/cgroup/cgroup.h"
#include "sandbox/cgroup/files.h"

namespace orrery::sandbox {
namespace {

constexpr char kHybrid[] =
    "30 29 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "32 29 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
    "33 29 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
constexpr char kPure[] = "30 29 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(HierarchiesTest, Hybrid) {
  const auto found = Hierarchies::Parse(kHybrid, "hugetlb ");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->unified(), "/sys/fs/cgroup/unified");
  EXPECT_EQ(found->of("cpu"), "/sys/fs/cgroup/cpu,cpuacct");
  EXPECT_FALSE(found->is_v2("memory"));
  EXPECT_EQ(found->all().size(), 4u);
  EXPECT_EQ(found->Describe(), "memory v1, pids v1, cpu v1, kill and freeze v2");
}

TEST(HierarchiesTest, PureVersion2) {
  const auto found = Hierarchies::Parse(kPure, "cpuset cpu io memory hugetlb pids rdma ");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->is_v2("memory") && found->is_v2("pids") && found->is_v2("cpu"));
  EXPECT_EQ(found->all(), std::vector<std::string>{"/sys/fs/cgroup"});
}

TEST(HierarchiesTest, AMissingControllerIsAnErrorThatNamesIt) {
  const auto found = Hierarchies::Parse(kPure, "cpu memory");
  EXPECT_FALSE(found.ok());
  EXPECT_NE(found.status().ToString().find("pids"), std::string::npos);
  const auto none = Hierarchies::Parse("", "");
  EXPECT_NE(none.status().ToString().find("mount -t cgroup2"), std::string::npos);
}

TEST(HierarchiesTest, ValuesOfFlatFiles) {
  EXPECT_EQ(ValueOf("low 0\noom 3\noom_kill 12\n", "oom_kill"), 12);
  EXPECT_EQ(ValueOf("oom_kill_disable 0\nunder_oom 0\noom_kill 2", "oom_kill"), 2);
  EXPECT_EQ(ValueOf("max 5\n", "min"), 0);
}

}  // namespace
}  // namespace orrery::sandbox

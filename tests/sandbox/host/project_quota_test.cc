// Projects of a file system that has them, as it has in tests/sandbox/guest.
#include "sandbox/disk/project_quota.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <fstream>
#include <set>

#include "orchestrator/base/status.h"
#include "sandbox/check/check.h"
#include "sandbox/protocol/descriptor.h"
#include "tests/sandbox/host/series.h"

namespace orrery::sandbox {
namespace {

class ProjectQuotaTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    auto quota = ProjectQuota::Open(work_.path(), 100);
    // No skip: a machine without is the ordinary case.
    if (quota.ok()) quota_ = *std::move(quota);
  }
  // Ours of the whole file system that have limits or hold anything.
  std::set<uint32_t> Projects() {
    const Descriptor here(::open(work_.path().c_str(), O_RDONLY | O_DIRECTORY));
    std::set<uint32_t> found;
    uint32_t from = ProjectQuota::kFirstProject;
    if_nextdqblk next{};
    while (::syscall(SYS_quotactl_fd, here.get(), QCMD(Q_GETNEXTQUOTA, PRJQUOTA), from, &next) ==
               0 &&
           next.dqb_id < ProjectQuota::kFirstProject + ProjectQuota::kProjects) {
      if (next.dqb_curinodes + next.dqb_bhardlimit + next.dqb_ihardlimit > 0) {
        found.insert(next.dqb_id);
      }
      from = next.dqb_id + 1;
    }
    return found;
  }
  // Once the file system has taken what was deleted out of its books: XFS does so in the
  // background.
  std::set<uint32_t> SettledProjects(size_t count) {
    std::set<uint32_t> found = Projects();
    for (int i = 0; i < 1000 && found.size() > count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      found = Projects();
    }
    return found;
  }
  static uint32_t ProjectOf(const std::string& folder) {
    const Descriptor here(::open(folder.c_str(), O_RDONLY | O_DIRECTORY));
    fsxattr attributes{};
    ::ioctl(here.get(), FS_IOC_FSGETXATTR, &attributes);
    return attributes.fsx_projid;
  }

  std::unique_ptr<ProjectQuota> quota_;
};

TEST_F(ProjectQuotaTest, NoTwoFoldersShareAProjectWhoeverMakesThem) {
  if (quota_ == nullptr) return;
  constexpr int kThreads = 8, kEach = 20;
  std::vector<std::thread> makers;
  for (int t = 0; t < kThreads; ++t) {
    makers.emplace_back([&, t] {
      const auto other = *ProjectQuota::Open(work_.path(), 100);
      ProjectQuota& quota = t % 2 == 0 ? *other : *quota_;
      // Some have an owner of their own, as another process is.
      for (int i = 0; i < kEach; ++i) {
        const auto made = quota.Make(work_.path() + fmt::format("/{}-{}", t, i), 1 << 20, 10 + i);
        EXPECT_TRUE(made.ok()) << made;
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  std::set<uint32_t> ids;
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      ids.insert(ProjectOf(work_.path() + fmt::format("/{}-{}", t, i)));
    }
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kThreads * kEach));
  EXPECT_EQ(Projects(), ids);
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      EXPECT_TRUE(ProjectQuota::Remove(work_.path() + fmt::format("/{}-{}", t, i)).ok());
    }
  }
  EXPECT_TRUE(SettledProjects(0).empty());
}

TEST_F(ProjectQuotaTest, LimitsHoldForBytesAndInodes) {
  if (quota_ == nullptr) return;
  const std::string folder = work_.path() + "/limited";
  ASSERT_TRUE(quota_->Make(folder, 1 << 20, 100).ok());
  // As somebody without CAP_SYS_RESOURCE, whom alone ext4 limits.
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::chmod(folder.c_str(), 0777);
    if (::setresuid(1000, 1000, 1000) != 0) ::_exit(1);
    std::ofstream file(folder + "/file");
    file << std::string(3 << 20, 'x') << std::flush;
    if (file.good()) ::_exit(2);
    int made = 0;
    while (std::ofstream(folder + "/" + std::to_string(made)).good()) ++made;
    ::_exit(made > 90 && made < 110 ? 0 : 3);
  }
  int status = 0;
  ::waitpid(writer, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(ProjectQuota::Remove(folder).ok());
}

TEST_F(ProjectQuotaTest, OwnersThatWereKilledLeaveNoProject) {
  if (quota_ == nullptr) return;
  HostOptions options = TestOptions(work_);
  options.disk = DiskBackend::kProjectQuota;
  RunOwnerKills(options, options_, 12, 20261130);
  host_.reset();
  ExpectNothingLeft(options);
  EXPECT_TRUE(SettledProjects(0).empty());
}

TEST_F(ProjectQuotaTest, SandboxesGiveTheirProjectsBack) {
  if (quota_ == nullptr) return;
  HostOptions options = TestOptions(work_);
  options.disk = DiskBackend::kAuto;
  host_ = *MakeLocalHost(options);
  auto one = Make(), two = Make();
  EXPECT_EQ(Projects().size(), 2u);
  EXPECT_TRUE(one->Exec(Shell("mkdir -p /a/b; echo x > /a/b/c")).ok());
  const auto snapshot = one->TakeSnapshot();
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(Projects().size(), 3u);
  EXPECT_TRUE(two->Destroy().ok());
  EXPECT_TRUE(one->Destroy().ok());
  EXPECT_EQ(SettledProjects(1).size(), 1u) << "the snapshot's";
}

TEST_F(ProjectQuotaTest, NobodyInsideLeavesItsProjectOrItsLimits) {
  if (quota_ == nullptr) return;
  HostOptions options = TestOptions(work_);
  options.disk = DiskBackend::kProjectQuota;
  host_ = *MakeLocalHost(options);
  std::filesystem::create_directories(work_.path() + "/empty");
  for (const auto check : {CheckEscapes, CheckLoads}) {
    const auto rows = check(host_.get(), ProbeOptions(work_.path() + "/empty"));
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (const CheckRow& row : *rows) EXPECT_TRUE(row.held) << row.name << ": " << row.detail;
  }
}

}  // namespace
}  // namespace orrery::sandbox

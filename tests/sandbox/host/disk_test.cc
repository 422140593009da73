// Disk and inode limits by each back end, and that files on a disk go with their last holder; with
// the mounts of this kernel and with those of older ones.
#include <tuple>

#include "sandbox/disk/project_quota.h"
#include "sandbox/host/leftovers.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using Way = std::tuple<DiskBackend, bool>;  // and staged mounts

class DiskTest : public HostTest, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    host_.reset();
    HostOptions options = TestOptions(work_);
    std::tie(options.disk, options.staged_mounts) = GetParam();
    options.allow_unenforced = !enforced();
    host_ = *MakeLocalHost(options);
    const auto probe = host_->Create(options_);
    if (probe.ok()) return;
    const std::string why = probe.status().ToString();
    if (why.find("loop") != std::string::npos) GTEST_SKIP() << "no loop devices here: " << why;
    FAIL() << why;
  }
  DiskBackend backend() const { return std::get<0>(GetParam()); }
  bool enforced() const { return backend() != DiskBackend::kUnlimited; }
  int CountUppers() {
    int count = 0;
    for (const auto& host : std::filesystem::directory_iterator(work_.path() + "/state/hosts")) {
      for (const auto& upper : std::filesystem::directory_iterator(host.path() / "uppers")) {
        count += upper.path().empty() ? 0 : 1;
      }
    }
    return count;
  }
};

// Project quota where this machine has it; tests/sandbox/guest has it always.
std::vector<DiskBackend> Backends() {
  std::vector<DiskBackend> all = {DiskBackend::kTmpfs, DiskBackend::kLoop, DiskBackend::kUnlimited};
  if (ProjectQuota::Open("/tmp").ok()) all.push_back(DiskBackend::kProjectQuota);
  return all;
}

std::string NameOf(const testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"Tmpfs", "Loop", "ProjectQuota", "Auto", "Unlimited"};
  return std::string(kNames[static_cast<int>(std::get<0>(info.param))]) +
         (std::get<1>(info.param) ? "Staged" : "");
}

INSTANTIATE_TEST_SUITE_P(Backends, DiskTest,
                         testing::Combine(testing::ValuesIn(Backends()), testing::Bool()), NameOf);

TEST_P(DiskTest, BytesAndInodesAreLimitedAndSaidSo) {
  if (!enforced()) return;
  options_.limits.disk_bytes = 24 << 20;
  options_.limits.inodes = 500;
  const auto sandbox = Make();
  const ExecResult full = sandbox->Exec(
      Shell("dd if=/dev/zero of=/big bs=65536 count=1000 2>/dev/shm/e; cat /dev/shm/e; "
            "stat -c %s /big"));
  EXPECT_TRUE(full.disk_full) << Describe(full);
  const std::string text = full.output.Text();
  EXPECT_TRUE(text.find("No space left") != std::string::npos ||
              text.find("quota exceeded") != std::string::npos)
      << text;
  const int64_t bytes = std::atoll(text.substr(text.rfind('\n', text.size() - 2) + 1).c_str());
  EXPECT_GT(bytes, 22 << 20);
  EXPECT_LT(bytes, 26 << 20);
  EXPECT_FALSE(sandbox->Exec(Shell("rm /big")).disk_full);
  const ExecResult files = sandbox->Exec(
      Shell("mkdir /d; i=0; while echo > /d/$i; do i=$((i+1)); done 2> /dev/null; echo $i"));
  EXPECT_TRUE(files.disk_full) << Describe(files);
  const int64_t count = std::atoll(files.output.Text().c_str());
  EXPECT_GT(count, 470);
  EXPECT_LE(count, 500 + 16);  // ext4 makes whole blocks of them
  EXPECT_TRUE(sandbox->Exec(Shell("rm -r /d; echo x > /x")).ok());
}

TEST_P(DiskTest, FilesOfALoopAreNotTheSandboxsMemory) {
  if (backend() != DiskBackend::kLoop) return;
  options_.limits.memory_bytes = 64 << 20;
  options_.limits.disk_bytes = 200 << 20;
  const auto sandbox = Make();
  const ExecResult result = sandbox->Exec(
      Shell("dd if=/dev/zero of=/big bs=1048576 count=150 2>/dev/null && echo written"));
  EXPECT_EQ(result.output.Text(), "written\n") << Describe(result);
  EXPECT_FALSE(result.out_of_memory);
}

TEST_P(DiskTest, SnapshotsForksAndDiffsWorkAndNothingIsLeft) {
  auto parent = Make();
  EXPECT_TRUE(parent->Exec(Shell("echo base > /f; rm /bin/seq")).ok());
  auto snapshot = parent->TakeSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(parent->Exec(Shell("echo parent >> /f")).ok());
  auto fork = host_->Fork(*snapshot, options_);
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ((*fork)->Exec(Shell("cat /f; echo fork >> /f; test -e /bin/seq")).output.Text(),
            "base\n");
  EXPECT_EQ(parent->Exec(Shell("cat /f")).output.Text(), "base\nparent\n");
  const auto changes = (*fork)->Diff();
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_EQ(changes->size(), 2u);
  EXPECT_TRUE(parent->Destroy().ok());
  EXPECT_EQ((*fork)->Exec(Shell("cat /f")).output.Text(), "base\nfork\n");
  EXPECT_EQ(CountUppers(), backend() == DiskBackend::kTmpfs ? 0 : 2);
  EXPECT_TRUE((*fork)->Destroy().ok());
  *snapshot = nullptr;
  EXPECT_EQ(CountUppers(), 0);
  parent.reset();
  fork->reset();
  host_.reset();
  const auto left = FindLeftovers(TestOptions(work_));
  for (const std::string& line : *left) ADD_FAILURE() << line;
}

TEST_P(DiskTest, AFullOneTakesNothingOfItsNeighboursAndForks) {
  if (!enforced()) return;
  options_.limits.disk_bytes = 16 << 20;
  const auto full = Make(), other = Make();
  const std::string fill =
      "dd if=/dev/zero of=/big bs=65536 count=1000 2>/dev/null; stat -c %s /big";
  EXPECT_TRUE(full->Exec(Shell(fill)).disk_full);
  const ExecResult fits = other->Exec(Shell("dd if=/dev/zero of=/x bs=1048576 count=12"));
  EXPECT_TRUE(fits.ok()) << Describe(fits);
  EXPECT_FALSE(fits.disk_full);
  const auto snapshot = other->TakeSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const auto fork = host_->Fork(*snapshot, options_);
  ASSERT_TRUE(fork.ok()) << fork.status();
  for (Sandbox* sandbox : {other.get(), fork->get()}) {
    const ExecResult filled = sandbox->Exec(Shell(fill));
    EXPECT_TRUE(filled.disk_full) << Describe(filled);
    EXPECT_LT(std::atoll(filled.output.Text().c_str()), 18 << 20);
  }
}

TEST_F(HostTest, ADiskThatTheMachineDoesNotHaveIsAnError) {
  HostOptions options = TestOptions(work_);
  options.state_folder = "/dev/shm/orrery-test-" + std::to_string(::getpid());
  options.disk = DiskBackend::kProjectQuota;
  const auto host = MakeLocalHost(options);
  EXPECT_EQ(host.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(host.status().ToString().find("prjquota"), std::string::npos) << host.status();
  EXPECT_NE(ChooseDisk(options.state_folder), DiskBackend::kProjectQuota);
  std::filesystem::remove_all(options.state_folder);
}

TEST_P(DiskTest, HostsPromiseNoMoreThanTheyHave) {
  if (backend() != DiskBackend::kLoop) return;
  options_.limits.disk_request_bytes = int64_t{1} << 60;
  EXPECT_EQ(host_->Create(options_).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(DiskTest, AFormatThatCannotBeIsAnError) {
  if (backend() != DiskBackend::kLoop) return;
  options_.limits.inodes = int64_t{1} << 40;
  EXPECT_FALSE(host_->Create(options_).ok());
  EXPECT_EQ(CountUppers(), 0);
}

}  // namespace
}  // namespace orrery::sandbox

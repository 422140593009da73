// Nothing outlives its owner, and nothing is left of what ended.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "sandbox/check/probing.h"
#include "sandbox/disk/remove_tree.h"
#include "tests/sandbox/host/series.h"

namespace orrery::sandbox {
namespace {

class LifeTest : public HostTest {
 protected:
  void ExpectNothingLeft() { sandbox::ExpectNothingLeft(TestOptions(work_)); }
};

TEST_F(LifeTest, NothingIsLeftAfterEpisodes) {
  LiveAtOnce(host_.get(), options_, 4, 20);
  ASSERT_TRUE(WaitForBlanks(host_.get(), options_, 3));
  const int before = CountDescriptors();
  LiveAtOnce(host_.get(), options_, 8, 80);
  ASSERT_TRUE(WaitForBlanks(host_.get(), options_, 3));
  EXPECT_EQ(CountDescriptors(), before);
  EXPECT_EQ(host_->load().sandboxes, 0);
  host_.reset();
  ExpectNothingLeft();
}

TEST_F(LifeTest, OwnersThatAreKilledLeaveNothingAfterTheNextStart) {
  RunOwnerKills(TestOptions(work_), options_, 12, 17);
  // A live owner's host was spared.
  EXPECT_TRUE(Make()->Exec(Shell("true")).ok());
  host_.reset();
  ExpectNothingLeft();
}

TEST_F(LifeTest, DeepTreeIsDestroyed) {
  options_.limits.inodes = 100'000;
  const auto probing = Probing::Begin(host_.get(), options_);
  ASSERT_TRUE(probing.ok()) << probing.status();
  const ExecResult result = probing->Run("deep", 20'000, 300'000);
  EXPECT_TRUE(result.ok()) << Describe(result) << result.output.Text();
  EXPECT_TRUE(probing->sandbox().Destroy().ok());
}

TEST_F(LifeTest, DeepTreeOnDiskIsDeleted) {
  const std::string folder = work_.path() + "/deep";
  const pid_t maker = ::fork();
  if (maker == 0) {
    ::mkdir(folder.c_str(), 0755);
    if (::chdir(folder.c_str()) != 0) ::_exit(1);
    for (int i = 0; i < 10'000; ++i) {
      if (::mkdir("d", 0755) != 0 || ::chdir("d") != 0) ::_exit(1);
    }
    ::_exit(::symlink("/etc", "link") == 0 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(maker, &status, 0);
  ASSERT_EQ(status, 0);
  const absl::Status removed = RemoveTree(folder);
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_TRUE(std::filesystem::exists("/etc/passwd"));
}

TEST_F(LifeTest, AdmissionQueuesAndRefuses) {
  HostOptions options = TestOptions(work_);
  options.state_folder += "-2";
  options.cgroup += "-2";
  options.max_sandboxes = 1;
  options.max_waiting = 1;
  auto host = MakeLocalHost(options);
  ASSERT_TRUE(host.ok()) << host.status();
  auto first = (*host)->Create(options_);
  ASSERT_TRUE(first.ok());
  absl::StatusOr<std::unique_ptr<Sandbox>> second = absl::UnknownError("");
  std::thread waiter([&] { second = (*host)->Create(options_); });
  while ((*host)->load().waiting == 0) std::this_thread::yield();
  EXPECT_EQ((*host)->Create(options_).status().code(), absl::StatusCode::kResourceExhausted);
  first->reset();
  waiter.join();
  EXPECT_TRUE(second.ok()) << second.status();
  SandboxOptions large = options_;
  large.limits.memory_request_bytes = int64_t{1} << 50;
  EXPECT_EQ((*host)->Create(large).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LifeTest, LimitsThatAreNoneAreRefused) {
  const std::pair<const char*, std::function<void(Limits&)>> broken[] = {
      {"memory", [](Limits& limits) { limits.memory_bytes = 0; }},
      {"processes", [](Limits& limits) { limits.processes = -1; }},
      {"cpus", [](Limits& limits) { limits.cpus = std::nan(""); }},
      {"requests", [](Limits& limits) { limits.memory_request_bytes = -(int64_t{1} << 60); }},
      {"requests", [](Limits& limits) { limits.cpu_request = -1; }}};
  for (const auto& [name, change] : broken) {
    SandboxOptions options = options_;
    change(options.limits);
    const auto refused = host_->Create(options);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(refused.status().ToString().find(name), std::string::npos) << refused.status();
  }
  EXPECT_EQ(host_->load().memory_bytes, 0);
}

TEST_F(LifeTest, BrokenImagesAreRefusedAndLeaveNothing) {
  SandboxOptions broken = options_;
  broken.image.layers = {work_.path() + "/missing"};
  EXPECT_FALSE(host_->Create(broken).ok());
  // A link where something is mounted.
  const std::string evil = work_.path() + "/evil";
  std::filesystem::create_directories(evil);
  std::filesystem::create_symlink("/tmp", evil + "/proc");
  broken.image.layers = {evil};
  const auto refused = host_->Create(broken);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.status().ToString().find("/proc"), std::string::npos) << refused.status();
  EXPECT_EQ(host_->load().sandboxes, 0);
  host_.reset();
  ExpectNothingLeft();
}

TEST_F(LifeTest, SnapshotAndForksDoNotSeeEachOther) {
  const auto parent = Make();
  EXPECT_TRUE(parent->Exec(Shell("echo base > /f; mkdir /d; rm /bin/seq")).ok());
  const auto snapshot = parent->TakeSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(parent->Exec(Shell("echo parent >> /f; rm -r /d")).ok());
  auto a = host_->Fork(*snapshot, options_), b = host_->Fork(*snapshot, options_);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_TRUE((*a)->Exec(Shell("echo a >> /f")).ok());
  EXPECT_EQ((*a)->Exec(Shell("cat /f; ls -d /d")).output.Text(), "base\na\n/d\n");
  EXPECT_EQ((*b)->Exec(Shell("cat /f; ls -d /d; test -e /bin/seq")).output.Text(), "base\n/d\n");
  EXPECT_EQ(parent->Exec(Shell("cat /f")).output.Text(), "base\nparent\n");
  // Terminals, shared memory and processes go on as before.
  EXPECT_TRUE(
      parent->Exec(Shell("echo x > /dev/shm/x && ps > /dev/null && test -w /dev/null")).ok());
  const auto second = (*a)->TakeSnapshot();
  ASSERT_TRUE(second.ok()) << second.status();
  auto c = host_->Fork(*second, options_);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->Exec(Shell("cat /f")).output.Text(), "base\na\n");
}

TEST_F(LifeTest, SnapshotOfABusySandboxIsRefused) {
  const auto sandbox = Make();
  sandbox->Exec(Shell("sleep 100 &"));
  const auto snapshot = sandbox->TakeSnapshot();
  EXPECT_EQ(snapshot.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(snapshot.status().ToString().find("busy"), std::string::npos) << snapshot.status();
}

}  // namespace
}  // namespace orrery::sandbox

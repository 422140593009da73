// Blanks: an image makes a whole sandbox of one, once; none that died or does not fit is given.
#include <signal.h>

#include <fstream>
#include <set>

#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

class BlankPoolTest : public HostTest {
 protected:
  // What runs in groups of sandboxes that nobody was given.
  std::vector<pid_t> InitsOf(const std::set<std::string>& given) {
    std::vector<pid_t> pids;
    const std::string group = Hierarchies::Find()->unified() + "/" + TestOptions(work_).cgroup;
    for (const auto& host : std::filesystem::directory_iterator(group)) {
      if (!host.is_directory()) continue;
      for (const auto& entry : std::filesystem::directory_iterator(host.path())) {
        const std::string name = entry.path().filename().string();
        if (!entry.is_directory() || name[0] != 's' || given.contains(name)) continue;
        std::ifstream procs(entry.path() / "cgroup.procs");
        for (pid_t pid = 0; procs >> pid;) pids.push_back(pid);
      }
    }
    return pids;
  }
};

TEST_F(BlankPoolTest, IdsHostsAndFilesAreFreshEachTime) {
  std::set<std::string> ids;
  for (int i = 0; i < 8; ++i) {
    const auto sandbox = Make();
    EXPECT_TRUE(ids.insert(sandbox->id()).second);
    const ExecResult result = sandbox->Exec(
        Shell("test -e /mark || echo fresh; touch /mark; hostname; ls /dev/pts; ls -A /proc/sys"));
    EXPECT_TRUE(result.output.Text().starts_with("fresh\nsandbox\nptmx\n")) << result.output.Text();
  }
}

TEST_F(BlankPoolTest, OneSandboxAloneBringsNoOthersAbout) {
  HostOptions options = TestOptions(work_);
  options.state_folder += "-2";
  options.cgroup += "-2";
  const auto host = MakeLocalHost(options);
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Create(options_).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ((*host)->load().blank, 0);
  EXPECT_TRUE(WaitForBlanks(host->get(), options_, options.blanks));
}

TEST_F(BlankPoolTest, OtherLimitsAreOtherBlanks) {
  options_.limits.open_files = 99;
  options_.hostname = "other";
  for (int i = 0; i < 4; ++i) {
    const auto sandbox = Make();
    EXPECT_EQ(sandbox->Exec(Shell("ulimit -n; hostname")).output.Text(), "99\nother\n");
  }
}

TEST_F(BlankPoolTest, DeadOnesAreNotGiven) {
  const auto held = Make();
  ASSERT_TRUE(WaitForBlanks(host_.get(), options_, 3));
  const std::vector<pid_t> inits = InitsOf({held->id()});
  EXPECT_EQ(inits.size(), 3u);
  for (const pid_t pid : inits) ::kill(pid, SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Make()->Exec(Shell("true")).ok());
}

TEST_F(BlankPoolTest, ImageThatLeadsMountsAwayIsRefused) {
  for (const char* name : {"dev", "sys", "proc"}) {
    const std::string image = work_.path() + "/hostile-" + name;
    std::filesystem::create_directories(image + "/bin");
    std::filesystem::create_directory_symlink("/etc", image + "/" + name);
    options_.image.layers = {image};
    const auto sandbox = host_->Create(options_);
    EXPECT_EQ(sandbox.status().code(), absl::StatusCode::kInvalidArgument) << sandbox.status();
  }
}

}  // namespace
}  // namespace orrery::sandbox

// Sandboxes that wait ready: the caller's own options, always fresh, and never in anybody's way.
#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "sandbox/host/leftovers.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using Clock = std::chrono::steady_clock;

class WarmPoolTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    Restart([](HostOptions&) {});
  }
  void Restart(const std::function<void(HostOptions&)>& change) {
    host_.reset();
    HostOptions options = TestOptions(work_);
    options.warm_sandboxes = 3;
    change(options);
    host_ = *MakeLocalHost(options);
  }
  bool Warm(int64_t count) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (host_->load().warm != count) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
};

TEST_F(WarmPoolTest, ReadyOnesAreTakenAndReplacedAndNeverTwice) {
  Make();
  ASSERT_TRUE(Warm(3));
  EXPECT_EQ(host_->load().sandboxes, 0);
  std::set<std::string> ids;
  for (int i = 0; i < 6; ++i) {
    const auto sandbox = Make();
    EXPECT_TRUE(ids.insert(sandbox->id()).second);
    EXPECT_EQ(sandbox->Exec(Shell("test -e /mark || echo fresh; touch /mark")).output.Text(),
              "fresh\n");
    ASSERT_TRUE(Warm(3));
  }
  host_.reset();
  const auto left = FindLeftovers(TestOptions(work_));
  for (const std::string& line : *left) ADD_FAILURE() << line;
}

TEST_F(WarmPoolTest, OtherOptionsAreOtherSandboxes) {
  Make();
  ASSERT_TRUE(Warm(3));
  options_.hostname = "other";
  options_.limits.open_files = 99;
  EXPECT_EQ(Make()->Exec(Shell("hostname; ulimit -n")).output.Text(), "other\n99\n");
  ASSERT_TRUE(Warm(6));
  options_.warm = false;
  const auto cold = Make();
  EXPECT_EQ(host_->load().warm, 6);
}

TEST_F(WarmPoolTest, MakesRoomForWhoeverNeedsIt) {
  Restart([](HostOptions& options) { options.max_sandboxes = 3; });
  Make();
  ASSERT_TRUE(Warm(3));
  options_.hostname = "other";
  std::vector<std::unique_ptr<Sandbox>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(Make());
    ASSERT_NE(all.back(), nullptr);
  }
  EXPECT_EQ(host_->load().sandboxes, 3);
  EXPECT_EQ(host_->load().warm, 0);
}

TEST_F(WarmPoolTest, AReplacedImageIsNotServedFromThePool) {
  Make();
  ASSERT_TRUE(Warm(3));
  const std::string layer = options_.image.layers[0];
  std::filesystem::rename(layer, layer + ".old");
  MakeBusyboxImage(layer);
  std::filesystem::create_directory(layer + "/new");
  EXPECT_TRUE(Make()->Exec(Shell("test -d /new")).ok());
}

TEST_F(WarmPoolTest, DeadOnesAreNotGiven) {
  Make();
  ASSERT_TRUE(Warm(3));
  // Their inits die with their memory groups' processes, as by the kernel's killer.
  const auto hierarchies = Hierarchies::Find();
  std::error_code error;
  const std::string group = hierarchies->unified() + "/" + TestOptions(work_).cgroup;
  for (const auto& host : std::filesystem::directory_iterator(group, error)) {
    if (!host.is_directory()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(host.path())) {
      if (!entry.is_directory() || entry.path().filename().string()[0] != 's') continue;
      std::ofstream(entry.path() / "cgroup.kill") << "1";
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(Make()->Exec(Shell("true")).ok());
}

}  // namespace
}  // namespace orrery::sandbox

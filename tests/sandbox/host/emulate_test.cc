// An image of unpacked Debian arm64 packages, brought by the image store and run under qemu.
#include <sys/utsname.h>

#include "sandbox/image/image.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

std::string FolderOf(const std::string& variable, const std::string& otherwise) {
  const char* value = std::getenv(variable.c_str());
  return value != nullptr ? value : otherwise;
}

std::string HostRules() {
  std::string names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/sys/fs/binfmt_misc", none)) {
    names += entry.path().filename().string() + " ";
  }
  return names;
}

class EmulateTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    if (HostArchitecture() == "arm64") GTEST_SKIP() << "this machine is arm64 itself";
    const std::string system =
        FolderOf("ORRERY_ARM64_IMAGE", ORRERY_SOURCE_DIR "/.deps/arm64-image");
    if (!std::filesystem::exists(system + "/bin/bash")) {
      GTEST_SKIP() << "no arm64 system in " << system << ": ./orrery setup --tests";
    }
    if (!std::filesystem::exists("/usr/bin/qemu-aarch64-static")) {
      GTEST_SKIP() << "no qemu-aarch64-static: ./orrery setup --tests";
    }
    auto store = ImageStore::Open(work_.path() + "/store");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    const auto image = store_->Import(system, {.name = "arm"});
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->architecture, "arm64");
  }
  void TearDown() override { host_.reset(); }

  std::unique_ptr<ImageStore> store_;
};

TEST_F(EmulateTest, RefusedUnlessAskedFor) {
  const auto refused = store_->Acquire("arm");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.status().message()).find("emulate: true"), std::string::npos);
}

TEST_F(EmulateTest, RunsUnderItsOwnBinfmt) {
  const std::string rules = HostRules();
  const auto lease = store_->Acquire("arm", /*emulate=*/true);
  ASSERT_TRUE(lease.ok()) << lease.status();
  options_.image = lease->image();
  const auto sandbox = Make();
  ASSERT_NE(sandbox, nullptr);
  const ExecResult machine = sandbox->Exec(Shell("uname -m; echo $((6*7)); id -u"));
  EXPECT_TRUE(machine.ok()) << Describe(machine) << machine.output.Text();
  EXPECT_EQ(machine.output.Text(), "aarch64\n42\n0\n");
  // Programs that programs start, and many at once.
  const ExecResult many = sandbox->Exec(Shell(
      "for i in 1 2 3 4; do bash -c 'cat /proc/self/comm' & done; wait; ls / | sort | head -1"));
  EXPECT_TRUE(many.ok()) << Describe(many) << many.output.Text();
  // Nobody inside can change what is registered, and the host knows nothing of it.
  const ExecResult register_more =
      sandbox->Exec(Shell("echo ':x:E::x::/bin/bash:' > /proc/sys/fs/binfmt_misc/register"));
  EXPECT_FALSE(register_more.ok());
  EXPECT_EQ(HostRules(), rules);
  // A command that goes beyond its time is killed under qemu as well.
  ExecRequest slow = Shell("sleep 100 & sleep 100");
  slow.timeout_ms = 1000;
  EXPECT_EQ(sandbox->Exec(slow).ending, Ending::kDeadline);
  EXPECT_TRUE(sandbox->Destroy().ok());
}

// Images of both kinds live side by side.
TEST_F(EmulateTest, NativeSandboxesStayNative) {
  const auto lease = store_->Acquire("arm", /*emulate=*/true);
  ASSERT_TRUE(lease.ok()) << lease.status();
  SandboxOptions emulated = options_;
  emulated.image = lease->image();
  for (int i = 0; i < 3; ++i) {
    const auto foreign = host_->Create(emulated);
    ASSERT_TRUE(foreign.ok()) << foreign.status();
    EXPECT_EQ((*foreign)->Exec(Shell("uname -m")).output.Text(), "aarch64\n");
    const auto native = Make();
    utsname name;
    ASSERT_EQ(::uname(&name), 0);
    ExecRequest request = Shell("cat /etc/passwd | wc -l");
    EXPECT_EQ(native->Exec(request).output.Text(), "2\n");
    EXPECT_FALSE(native->Exec(Shell("test -e /lib/ld-linux-aarch64.so.1")).ok());
  }
}

}  // namespace
}  // namespace orrery::sandbox

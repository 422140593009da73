// A shell that stays.
#include "sandbox/shell.h"

#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

class ShellTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    sandbox_ = Make();
    shell_options_.program = {"sh"};
  }
  void TearDown() override {
    sandbox_.reset();
    HostTest::TearDown();
  }
  int64_t Processes() {
    const ExecResult result = sandbox_->Exec(Shell("ps | grep -c '[s]leep 3'"));
    return std::atoll(result.output.Text().c_str());
  }
  static ExecRequest Shell(const std::string& script) { return HostTest::Shell(script); }

  std::unique_ptr<Sandbox> sandbox_;
  ShellOptions shell_options_;
};

TEST_F(ShellTest, StateStays) {
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  EXPECT_TRUE(shell.Run("cd /tmp; x='a b'; f() { echo \"f:$1\"; }; sleep 300 &").ok());
  const ExecResult result = shell.Run("pwd; f \"$x\"; kill %1 && echo killed");
  EXPECT_EQ(result.output.Text(), "/tmp\nf:a b\nkilled\n") << Describe(result);
  EXPECT_EQ(shell.folder(), "/tmp");
}

TEST_F(ShellTest, OutputAndCodesAreExact) {
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  EXPECT_EQ(shell.Run("printf 'no newline'").output.Text(), "no newline");
  EXPECT_EQ(shell.Run("").output.Text(), "");
  const ExecResult both = shell.Run("echo out; echo err >&2; false");
  EXPECT_EQ(both.output.Text(), "out\nerr\n");
  EXPECT_EQ(both.code, 1);
  EXPECT_EQ(both.ending, Ending::kExited);
  EXPECT_EQ(shell.Run("echo 'it'\\''s'; cat << END\n$((6*7))\nEND\n").output.Text(), "it's\n42\n");
  // Standard input of a script is empty, and the shell's own is not eaten.
  EXPECT_EQ(shell.Run("cat; echo after").output.Text(), "after\n");
  EXPECT_EQ(shell.Run("exec > /tmp/log; echo hidden").output.Text(), "");
  EXPECT_EQ(shell.Run("exec >&2; cat /tmp/log").output.Text(), "hidden\n");
  EXPECT_EQ(shell.Run(std::string("a\0b", 3)).ending, Ending::kRefused);
}

TEST_F(ShellTest, LargeScriptsAndOutput) {
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  const std::string text(3 << 20, 'x');
  EXPECT_EQ(shell.Run("y=" + text + "; echo ${#y}").output.Text(),
            std::to_string(text.size()) + "\n");
  const ExecResult flood = shell.Run("seq 1 300000");
  EXPECT_EQ(flood.output.total_bytes, 1988895);
  EXPECT_TRUE(flood.output.tail.ends_with("\n299999\n300000\n"));
  EXPECT_EQ(shell.Run("echo next").output.Text(), "next\n");
}

TEST_F(ShellTest, DeadlineTakesTheShellAndAllItStarted) {
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  EXPECT_TRUE(shell.Run("cd /tmp; x=1; sleep 301 &").ok());
  const ExecResult result = shell.Run("echo before; (setsid sleep 302 &); sleep 303", 400);
  EXPECT_EQ(result.ending, Ending::kDeadline) << Describe(result);
  EXPECT_EQ(result.output.Text(), "before\n");
  EXPECT_NE(result.why.find("400 ms"), std::string::npos) << result.why;
  EXPECT_EQ(Processes(), 0);
  EXPECT_EQ(shell.Run("pwd; echo \"x=$x\"").output.Text(), "/tmp\nx=\n");
}

TEST_F(ShellTest, ExitAndCapEndTheShell) {
  shell_options_.output_cap_bytes = 1 << 20;
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  const ExecResult exited = shell.Run("echo bye; exit 3");
  EXPECT_EQ(exited.ending, Ending::kExited) << Describe(exited);
  EXPECT_EQ(exited.code, 3);
  EXPECT_EQ(exited.output.Text(), "bye\n");
  const ExecResult flood = shell.Run("yes");
  EXPECT_EQ(flood.ending, Ending::kOutputCap) << Describe(flood);
  EXPECT_EQ(shell.Run("echo again").output.Text(), "again\n");
  EXPECT_EQ(shell.Run("kill -9 $$").ending, Ending::kSignalled);
  EXPECT_EQ(shell.Run("echo again").output.Text(), "again\n");
}

TEST_F(ShellTest, EventsAreReportedWithTheScriptInWhichTheyHappened) {
  options_.limits.memory_bytes = 64 << 20;
  options_.limits.disk_bytes = 1 << 20;
  sandbox_ = Make();
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  EXPECT_FALSE(shell.Run("true").out_of_memory);
  const ExecResult large = shell.Run("dd if=/dev/zero of=/dev/null bs=200M count=1; echo $?");
  EXPECT_TRUE(large.out_of_memory) << Describe(large);
  EXPECT_TRUE(large.output.Text().ends_with("137\n")) << large.output.Text();
  const ExecResult after = shell.Run("echo after");
  EXPECT_FALSE(after.out_of_memory || after.disk_full) << Describe(after);
  EXPECT_TRUE(shell.Run("dd if=/dev/zero of=/big bs=64k count=100").disk_full);
  EXPECT_FALSE(shell.Run("rm /big").disk_full);
}

TEST_F(ShellTest, TracesAreNotTakenForTheEnd) {
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  shell.Run("set -x");
  const ExecResult traced = shell.Run("echo one");
  EXPECT_NE(traced.output.Text().find("+ echo one"), std::string::npos) << traced.output.Text();
  EXPECT_NE(traced.output.Text().find("one\n"), std::string::npos);
  shell.Run("set +x");
  EXPECT_EQ(shell.Run("echo two").output.Text(), "two\n");
}

TEST_F(ShellTest, MissingProgramAndDestroyedSandbox) {
  shell_options_.program = {"no-such-shell"};
  sandbox::Shell missing(sandbox_.get(), shell_options_);
  const ExecResult refused = missing.Run("true");
  EXPECT_EQ(refused.ending, Ending::kRefused) << Describe(refused);
  EXPECT_NE(refused.why.find("no-such-shell"), std::string::npos) << refused.why;
  shell_options_.program = {"sh"};
  sandbox::Shell shell(sandbox_.get(), shell_options_);
  EXPECT_TRUE(shell.Run("true").ok());
  EXPECT_TRUE(sandbox_->Destroy().ok());
  EXPECT_NE(shell.Run("true").ending, Ending::kExited);
}

}  // namespace
}  // namespace orrery::sandbox

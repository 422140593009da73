// Commands, files and results of one sandbox.
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using CommandsTest = HostTest;

TEST_F(CommandsTest, ExitCodesAndMergedOutput) {
  const auto sandbox = Make();
  const ExecResult result = sandbox->Exec(Shell("echo one; echo two >&2; echo three; exit 7"));
  EXPECT_EQ(result.ending, Ending::kExited);
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.output.Text(), "one\ntwo\nthree\n");
  EXPECT_GT(result.wall_us, 0);
  EXPECT_GT(result.max_resident_kb, 0);
}

TEST_F(CommandsTest, SeparateOutputKeepsOrderWithinEach) {
  const auto sandbox = Make();
  ExecRequest request = Shell("echo a; echo x >&2; echo b; echo y >&2");
  request.separate = true;
  const ExecResult result = sandbox->Exec(request);
  EXPECT_EQ(result.output.Text(), "a\nb\n");
  EXPECT_EQ(result.error_output.Text(), "x\ny\n");
}

TEST_F(CommandsTest, SignalledIsToldFromExited) {
  const auto sandbox = Make();
  const ExecResult result = sandbox->Exec(Shell("kill -TERM $$"));
  EXPECT_EQ(result.ending, Ending::kSignalled);
  EXPECT_EQ(result.code, SIGTERM);
  EXPECT_EQ(sandbox->Exec(Shell("exit 143")).ending, Ending::kExited);
}

TEST_F(CommandsTest, NoSuchProgramIsRefused) {
  const auto sandbox = Make();
  ExecRequest request;
  request.argv = {"no-such-program"};
  const ExecResult result = sandbox->Exec(request);
  EXPECT_EQ(result.ending, Ending::kRefused);
  EXPECT_NE(result.why.find("no-such-program: No such file"), std::string::npos) << result.why;
  request.argv = {"true"};
  request.folder = "/nowhere";
  EXPECT_EQ(sandbox->Exec(request).ending, Ending::kRefused);
  request.folder = "";
  request.user = "bob";
  EXPECT_NE(sandbox->Exec(request).why.find("no user bob"), std::string::npos);
  request.user = "";
  request.argv = {};
  EXPECT_EQ(sandbox->Exec(request).ending, Ending::kRefused);
}

TEST_F(CommandsTest, EnvironmentFolderAndUser) {
  options_.image.config.env = {"A=image", "B=image"};
  options_.image.config.working_dir = "/tmp";
  const auto sandbox = Make();
  ExecRequest request = Shell("echo $A $B $HOME; pwd; id -u; id -g");
  request.env = {"B=request"};
  request.user = "alice";
  EXPECT_EQ(sandbox->Exec(request).output.Text(), "image request /home/alice\n/tmp\n1000\n1000\n");
  request = Shell("id -u; id -g; grep CapEff /proc/self/status");
  request.user = "77:88";
  EXPECT_EQ(sandbox->Exec(request).output.Text(), "77\n88\nCapEff:\t0000000000000000\n");
}

TEST_F(CommandsTest, InputReachesTheCommandExactly) {
  const auto sandbox = Make();
  ExecRequest request;
  request.argv = {"md5sum"};
  request.input = std::string(3 << 20, 'q');
  EXPECT_EQ(sandbox->Exec(request).output.Text().substr(0, 32), "3d7a67ddfed3939e2f2def60695de49d")
      << "of 3 MiB of q";
  request.argv = {"cat"};
  request.input = std::string("a\0b\r\n\xff", 6);
  EXPECT_EQ(sandbox->Exec(request).output.Text(), request.input);
  request.input.clear();  // then it is /dev/null
  EXPECT_TRUE(sandbox->Exec(request).output.Text().empty());
}

TEST_F(CommandsTest, ScriptLongerThanArgumentsMayBe) {
  const auto sandbox = Make();
  ExecRequest request = Shell("echo " + std::string(3 << 20, 'x') + " | wc -c");
  const ExecResult refused = sandbox->Exec(request);
  EXPECT_EQ(refused.ending, Ending::kRefused);
  EXPECT_NE(refused.why.find("standard input"), std::string::npos) << refused.why;
  request.input = request.argv[2];
  request.argv = {"sh"};
  EXPECT_EQ(sandbox->Exec(request).output.Text(), std::to_string((3 << 20) + 1) + "\n");
}

TEST_F(CommandsTest, ReaderThatLeavesEarlyIsNoFailure) {
  const auto sandbox = Make();
  ExecRequest request;
  request.argv = {"head", "-c", "3"};
  request.input = std::string(4 << 20, 'z');
  const ExecResult result = sandbox->Exec(request);
  EXPECT_TRUE(result.ok()) << Describe(result);
  EXPECT_EQ(result.output.Text(), "zzz");
}

TEST_F(CommandsTest, KeepCapCutsTheMiddleAndNotTheStatus) {
  const auto sandbox = Make();
  ExecRequest request = Shell("seq 1 100000; exit 3");
  request.keep_bytes = 1000;
  const ExecResult result = sandbox->Exec(request);
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.output.head.size(), 500u);
  EXPECT_EQ(result.output.tail.size(), 500u);
  EXPECT_EQ(result.output.total_bytes, 588895);
  EXPECT_TRUE(result.output.head.starts_with("1\n2\n3\n"));
  EXPECT_TRUE(result.output.tail.ends_with("99999\n100000\n"));
}

TEST_F(CommandsTest, DeadlineKillsTheTreeAndKeepsTheOutput) {
  const auto sandbox = Make();
  ExecRequest request = Shell("echo before; (setsid sh -c 'sleep 300' &) ; sleep 301; echo after");
  request.timeout_ms = 2000;
  const ExecResult result = sandbox->Exec(request);
  EXPECT_EQ(result.ending, Ending::kDeadline) << Describe(result);
  EXPECT_EQ(result.output.Text(), "before\n");
  EXPECT_EQ(sandbox->Exec(Shell("ps | grep -c '[s]leep 30'")).output.Text(), "0\n");
}

TEST_F(CommandsTest, BackgroundProcessLivesOnAndHoldsNobodyUp) {
  const auto sandbox = Make();
  const ExecResult result = sandbox->Exec(Shell("sleep 300 & echo started"));
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output.Text(), "started\n");
  EXPECT_LT(result.wall_us, 10'000'000);
  EXPECT_EQ(sandbox->Exec(Shell("ps | grep -c '[s]leep 300'")).output.Text(), "1\n");
  EXPECT_TRUE(sandbox->Destroy().ok());
}

TEST_F(CommandsTest, ManyCommandsAtOnce) {
  const auto sandbox = Make();
  std::vector<std::thread> threads;
  std::vector<std::string> outputs(16);
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      outputs[i] = sandbox->Exec(Shell("sleep 0.2; echo " + std::to_string(i))).output.Text();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(outputs[i], std::to_string(i) + "\n");
}

TEST_F(CommandsTest, DestroyEndsARunningCommandAsInfrastructure) {
  const auto sandbox = Make();
  ExecResult result;
  std::thread runner([&] { result = sandbox->Exec(Shell("sleep 300")); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(sandbox->Destroy().ok());
  runner.join();
  EXPECT_EQ(result.ending, Ending::kInfrastructure);
  EXPECT_TRUE(result.retryable);
  EXPECT_EQ(sandbox->Exec(Shell("true")).ending, Ending::kRefused);
}

TEST_F(CommandsTest, ReopenedStreamsAndTerminal) {
  const auto sandbox = Make();
  EXPECT_EQ(sandbox->Exec(Shell("echo a > /dev/stdout; echo b > /dev/stderr")).output.Text(),
            "a\nb\n");
  ExecRequest request = Shell("test -t 0 && test -t 1 && stty size");
  request.terminal = true;
  EXPECT_EQ(sandbox->Exec(request).output.Text(), "24 80\r\n");
}

TEST_F(CommandsTest, LimitsAreVisibleInside) {
  options_.limits.cpus = 1;
  const auto sandbox = Make();
  EXPECT_EQ(sandbox->Exec(Shell("nproc; hostname")).output.Text(), "1\nsandbox\n");
  EXPECT_EQ(sandbox->Exec(Shell("ulimit -n; ulimit -c")).output.Text(), "4096\n0\n");
}

TEST_F(CommandsTest, LocalhostWorks) {
  const auto sandbox = Make();
  for (const std::string address : {"127.0.0.1", "localhost", "::1"}) {
    const ExecResult result = sandbox->Exec(
        // The listener's input stays open, or it may leave before the ping is there.
        Shell("(echo hello; sleep 1) | nc -l -p 80 > /tmp/got & for i in 1 2 3 4 5 6 7 8 9; do "
              "sleep 0.2; "
              "echo ping | nc " +
              address + " 80 && break; done; wait; cat /tmp/got"));
    EXPECT_NE(result.output.Text().find("hello"), std::string::npos) << result.output.Text();
    EXPECT_NE(result.output.Text().find("ping"), std::string::npos) << result.output.Text();
  }
}

TEST_F(CommandsTest, FilesArriveExactly) {
  const auto sandbox = Make();
  std::string bytes(5 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 255);
  ASSERT_TRUE(sandbox->Put("/a/b/c.bin", bytes, 0750).ok());
  const auto back = sandbox->Get("/a/b/c.bin", 8 << 20);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == bytes);
  const auto info = sandbox->Stat("/a/b/c.bin");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->mode, 0100750u);
  EXPECT_EQ(info->size, 5 << 20);
  ASSERT_TRUE(sandbox->Put("/empty", "").ok());
  EXPECT_EQ(*sandbox->Get("/empty", 10), "");
  EXPECT_EQ(sandbox->Get("/a/b/c.bin", 100).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sandbox->Get("/missing", 100).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CommandsTest, ListTellsWhatIsThere) {
  const auto sandbox = Make();
  sandbox->Exec(Shell("mkdir /d; touch /d/f; ln -s f /d/l; mkdir /d/g; mkfifo /d/p"));
  const auto entries = sandbox->List("/d");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->size(), 3u);
  EXPECT_EQ(sandbox->List("/d", true)->size(), 4u);
  for (const FileInfo& entry : *entries) {
    EXPECT_EQ(entry.target, entry.name == "l" ? "f" : "");
  }
  EXPECT_EQ(sandbox->Get("/d/p", 10).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CommandsTest, PutReplacesALinkAndWritesNothingThroughIt) {
  const auto sandbox = Make();
  sandbox->Exec(Shell("ln -s /etc/passwd /tmp/l; touch /tmp/x; ln /tmp/x /tmp/hard"));
  ASSERT_TRUE(sandbox->Put("/tmp/l", "new").ok());
  ASSERT_TRUE(sandbox->Put("/tmp/hard", "new").ok());
  EXPECT_EQ(*sandbox->Get("/tmp/l", 10), "new");
  EXPECT_TRUE(sandbox->Get("/etc/passwd", 1000)->starts_with("root:"));
  EXPECT_EQ(*sandbox->Get("/tmp/x", 10), "");
}

TEST_F(CommandsTest, SandboxesDoNotSeeEachOther) {
  const auto a = Make(), b = Make();
  EXPECT_TRUE(a->Exec(Shell("echo a > /mine; rm /bin/seq")).ok());
  EXPECT_EQ(b->Exec(Shell("cat /mine")).code, 1);
  EXPECT_TRUE(b->Exec(Shell("seq 1")).ok());
  EXPECT_TRUE(Make()->Exec(Shell("seq 1")).ok());
}

}  // namespace
}  // namespace orrery::sandbox

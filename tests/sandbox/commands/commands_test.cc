// `orrery sandbox ...` and `orrery sandbox-host` of the built binary, as a person calls them.
#include "tests/e2e/e2e_testing.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using e2e::Await;
using e2e::Ended;
using e2e::Orrery;
using e2e::OrreryWords;
using e2e::Process;
using e2e::Words;
using testing::HasSubstr;

class CommandLineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "sandboxes need root";
    image_ = MakeBusyboxImage(work_.path() + "/image");
    if (image_.empty()) GTEST_SKIP() << "no static busybox (busybox-static)";
  }
  Words Command(const std::string& name, const Words& arguments) const {
    Words words = {"sandbox", name, "--state", work_.path() + "/state"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  Ended Run(const Words& options, const Words& command) const {
    Words words = Command("run", options);
    words.insert(words.end(), {image_, "--"});
    words.insert(words.end(), command.begin(), command.end());
    return Orrery(words);
  }
  Ended Store(const std::string& name, const Words& arguments) const {
    Words words = {"sandbox", name, "--store", work_.path() + "/store"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return Orrery(words);
  }

  WorkFolder work_;
  std::string image_;
};

TEST_F(CommandLineTest, RunGivesTheCommandsOutputAndCode) {
  const Ended ended = Run({}, {"sh", "-c", "echo out; echo err >&2; exit 7"});
  EXPECT_EQ(ended.code, 7) << ended;
  EXPECT_EQ(ended.out, "out\n");
  EXPECT_EQ(ended.err, "err\n");
  EXPECT_EQ(Run({}, {"sh", "-c", "kill -9 $$"}).code, 128 + 9);
  const Ended late = Run({"--timeout", "0.5"}, {"sleep", "100"});
  EXPECT_EQ(late.code, 124) << late;
  EXPECT_THAT(late.err, HasSubstr("deadline"));
  const Ended missing = Run({}, {"no-such-program"});
  EXPECT_EQ(missing.code, 125) << missing;
  EXPECT_THAT(missing.err, HasSubstr("no-such-program"));
  const Ended set = Run({"--env", "A=b c", "--workdir", "/tmp", "--user", "alice"},
                        {"sh", "-c", "echo \"$A\"; pwd; id -un"});
  EXPECT_EQ(set.out, "b c\n/tmp\nalice\n") << set;
}

TEST_F(CommandLineTest, LimitsAndDisksHold) {
  const Ended memory = Run({"--limit", "memory=64M"}, {"sh", "-c", "tail -c 200M /dev/zero"});
  EXPECT_NE(memory.code, 0) << memory;
  EXPECT_EQ(Run({"--limit", "cpus=1"}, {"nproc"}).out, "1\n");
  for (const char* disk : {"tmpfs", "loop", "auto"}) {
    const Ended full = Run({"--disk", disk, "--limit", "disk=16M"},
                           {"dd", "if=/dev/zero", "of=/big", "bs=65536", "count=500"});
    EXPECT_EQ(full.code, 1) << full;
    EXPECT_THAT(full.err, HasSubstr("disk full"));
  }
}

TEST_F(CommandLineTest, MistakesAreNamed) {
  const std::pair<Words, std::string> mistakes[] = {
      {{"--limit", "memory"}, "NAME=AMOUNT"}, {{"--limit", "colour=3"}, "colour"},
      {{"--limit", "memory=3X"}, "3X"},       {{"--disk", "paper"}, "paper"},
      {{"--host", "nonsense"}, "nonsense"},   {{"--host", "192.0.2.1:9"}, "TLS"}};
  for (const auto& [options, text] : mistakes) {
    const Ended ended = Run(options, {"true"});
    EXPECT_EQ(ended.code, 2) << ended;
    EXPECT_THAT(ended.err, HasSubstr(text));
  }
  const Ended unknown = Orrery(Command("run", {"no/such:image", "--", "true"}));
  EXPECT_EQ(unknown.code, 2) << unknown;
  EXPECT_THAT(unknown.err, HasSubstr("no/such"));
}

TEST_F(CommandLineTest, ImagesComeAndGo) {
  EXPECT_EQ(Store("import", {image_, "--name", "busy:1"}).code, 0);
  EXPECT_THAT(Store("images", {}).out, HasSubstr("busy:1"));
  Words run = Command("run", {"--store", work_.path() + "/store", "busy:1", "--", "echo", "hello"});
  EXPECT_EQ(Orrery(run).out, "hello\n");
  EXPECT_EQ(Store("rm", {"busy:1"}).code, 0);
  EXPECT_EQ(Orrery(run).code, 2);
  EXPECT_EQ(Store("gc", {}).code, 0);
}

TEST_F(CommandLineTest, RunningOnesAreListedEnteredAndKilled) {
  Process running(OrreryWords(Command("run", {image_, "--", "sleep", "300"})));
  const auto listed = [&] { return Orrery(Command("ps", {})).out; };
  ASSERT_TRUE(Await([&] { return listed().find("/s0") != std::string::npos; }, 60));
  const Ended inside = Orrery(Command("exec", {"s0", "--", "sh", "-c", "ps | grep -c '[s]leep'"}));
  EXPECT_EQ(inside.out, "1\n") << inside;
  EXPECT_EQ(Orrery(Command("exec", {"s9", "--", "true"})).code, 2);
  EXPECT_EQ(Orrery(Command("kill", {"s0"})).code, 0);
  const Ended ended = running.Wait(60);
  EXPECT_EQ(ended.code, 125) << ended;
  EXPECT_THAT(listed(), testing::Not(HasSubstr("/s0")));
}

TEST_F(CommandLineTest, AHostServesDrainsAndEnds) {
  const std::string address = "unix:" + work_.path() + "/service";
  Process host(OrreryWords({"sandbox-host", "--listen", address, "--state",
                            work_.path() + "/host-state", "--folders", "--warm", "2"}));
  const Ended first = Run({"--host", address}, {"sh", "-c", "echo there; exit 5"});
  EXPECT_EQ(first.out, "there\n") << first;
  EXPECT_EQ(first.code, 5);
  Process last(OrreryWords(
      Command("run", {"--host", address, image_, "--", "sh", "-c", "sleep 2; echo whole"})));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  host.Signal(SIGTERM);
  const Ended whole = last.Wait(60);
  EXPECT_EQ(whole.out, "whole\n") << whole;
  const Ended ended = host.Wait(60);
  EXPECT_EQ(ended.code, 0) << ended;
  EXPECT_THAT(ended.out, HasSubstr("drained\n"));
}

TEST_F(CommandLineTest, BenchLeavesNothing) {
  const Ended ended = Orrery(Command("bench", {"--image", image_, "--sandboxes", "4", "--episodes",
                                               "10", "--no-runc", "--resident-gib", "0"}));
  EXPECT_EQ(ended.code, 0) << ended;
  for (const char* row : {"ready, cold", "from a pool: ready", "disk limit by", "4 at once"}) {
    EXPECT_THAT(ended.out, HasSubstr(row));
  }
}

}  // namespace
}  // namespace orrery::sandbox

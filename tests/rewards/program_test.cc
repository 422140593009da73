// Programs as rewards: the protocol, and programs that die, hang, lie, shout or outlive their
// welcome.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "rewards/line_process.h"
#include "tests/rewards/grade.h"

namespace orrery::rewards {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

std::unique_ptr<Reward> Shell(const std::string& script,
                              std::map<std::string, std::string> more = {}) {
  std::map<std::string, std::string> parameters = {{"command", "sh -c '" + script + "'"},
                                                   {"start_timeout_s", "20"}};
  for (auto& [key, value] : more) parameters[key] = value;
  return Make("program", std::move(parameters));
}

// A loop that runs `body` for every request, which is in $l.
std::string Loop(const std::string& body) { return "while read -r l; do " + body + "; done"; }

std::string TemporaryFolder() {
  std::string path = testing::TempDir() + "/program_test_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::string Content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Gone, or dead and only waiting for a parent that is not us.
bool IsGone(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  const std::string stat = Content("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || stat.substr(name_end, 4).find('Z') != std::string::npos;
}

bool BecomesGone(pid_t pid) {
  for (int i = 0; i < 500 && !IsGone(pid); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return IsGone(pid);
}

TEST(Program, AnswersOneLineWithOne) {
  const auto reward =
      Shell(Loop("case \"$l\" in *\"\\\"answer\\\":\\\"18\\\"\"*) "
                 "echo \"{\\\"score\\\": 0.5, \\\"why\\\": \\\"saw it\\\"}\";; "
                 "*) echo \"{\\\"score\\\": -2}\";; esac"));
  for (int i = 0; i < 50; ++i) {
    const Outcome outcome = GradeWith(*reward, "line\nbreak \"quote\" \\ \xff", "18");
    ASSERT_EQ(outcome.kind, Outcome::Kind::kScored) << outcome.why;
    EXPECT_EQ(outcome.score, 0.5);
    EXPECT_EQ(outcome.why, "saw it");
    EXPECT_EQ(GradeWith(*reward, "x", "19").score, -2);
  }
}

// The request as it arrives, byte for byte.
TEST(Program, RequestCarriesAllOfTheSample) {
  const std::string path = TemporaryFolder() + "/seen";
  const auto reward = Shell(Loop("printf %s \"$l\" > " + path + "; echo \"{\\\"score\\\": 1}\""));
  Prompt prompt;
  prompt.id = "train/3";
  prompt.messages = {{"user", "What is 1+1?"}};
  prompt.answer = "2";
  prompt.metadata = {{"level", "easy"}};
  EXPECT_EQ(reward->Grade({prompt, "It is\n2\xff", true, 7}).score, 1);
  EXPECT_EQ(
      Content(path),
      "{\"id\":1,\"prompt\":{\"id\":\"train/3\",\"text\":\"\",\"messages\":[{\"role\":\"user\","
      "\"content\":\"What is 1+1?\"}],\"answer\":\"2\",\"metadata\":{\"level\":\"easy\"}},"
      "\"response\":\"It is\\n2\xef\xbf\xbd\",\"truncated\":true,\"num_tokens\":7}");
}

TEST(Program, ACrashFailsOneSampleAndIsForgotten) {
  const auto reward =
      Shell(Loop("case \"$l\" in *crash*) echo about to die >&2; exit 3;; "
                 "*) echo \"{\\\"score\\\": 1, \\\"why\\\": \\\"$$\\\"}\";; esac"));
  const Outcome before = GradeWith(*reward, "fine", "");
  EXPECT_EQ(before.score, 1);
  const Outcome crash = GradeWith(*reward, "crash", "");
  EXPECT_EQ(crash.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(crash.why, HasSubstr("exited with code 3"));
  EXPECT_THAT(crash.why, HasSubstr("about to die"));
  const Outcome after = GradeWith(*reward, "fine", "");
  EXPECT_EQ(after.score, 1);
  EXPECT_NE(after.why, before.why);  // another process
}

TEST(Program, ASignalIsNamed) {
  const Outcome outcome = GradeWith(*Shell(Loop("kill -SEGV $$")), "x", "");
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("signal 11"));
}

TEST(Program, ATimeoutKillsTheWholeGroup) {
  const std::string path = TemporaryFolder() + "/pids";
  const auto reward =
      Shell("sleep 1000 & echo $$ $! > " + path + "; " +
                Loop("case \"$l\" in *hang*) sleep 1000;; *) echo \"{\\\"score\\\": 1}\";; esac"),
            {{"timeout_s", "0.3"}});
  EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
  std::istringstream first(Content(path));
  pid_t leader = 0, grandchild = 0;
  first >> leader >> grandchild;
  ASSERT_GT(grandchild, 0);
  EXPECT_FALSE(IsGone(grandchild));
  const auto begin = steady_clock::now();
  const Outcome hung = GradeWith(*reward, "hang", "");
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(hung.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(hung.why, HasSubstr("did not answer within 0.3 s"));
  EXPECT_TRUE(BecomesGone(leader));
  EXPECT_TRUE(BecomesGone(grandchild));
  EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
}

TEST(Program, GarbageIsNeverAScore) {
  const std::string answers[] = {"hello",
                                 "",
                                 "{\\\"score\\\": NaN}",
                                 "{\\\"score\\\": Infinity}",
                                 "{\\\"score\\\": 1e999}",
                                 "{\\\"score\\\": \\\"1\\\"}",
                                 "{\\\"score\\\": null}",
                                 "{\\\"score\\\": true}",
                                 "{\\\"score\\\": 1",
                                 "{\\\"score\\\": 1} x",
                                 "[1]",
                                 "1",
                                 "{\\\"why\\\": \\\"no score\\\"}",
                                 "{\\\"score\\\": 1, \\\"id\\\": 999}",
                                 "{\\\"score\\\": 1, \\\"id\\\": \\\"1\\\"}"};
  for (const std::string& answer : answers) {
    const Outcome outcome = GradeWith(*Shell(Loop("echo \"" + answer + "\"")), "x", "");
    EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed) << answer;
    EXPECT_EQ(outcome.score, 0) << answer;
    EXPECT_THAT(outcome.why, HasSubstr("answered")) << answer;
  }
}

TEST(Program, PartOfALineAndAnEnd) {
  const Outcome outcome = GradeWith(*Shell("read -r l; printf \"{\\\"score\\\": 1}\""), "x", "");
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("exited with code 0"));
}

TEST(Program, ItMayAnswerAndEnd) {
  const auto reward = Shell("read -r l; echo \"{\\\"score\\\": 1}\"");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
}

TEST(Program, ItMaySayThatItFailed) {
  const Outcome outcome =
      GradeWith(*Shell(Loop("echo \"{\\\"failed\\\": \\\"no database\\\"}\"")), "x", "");
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("no database"));
}

TEST(Program, EndlessLinesAndDeepNestingAreRefused) {
  const Outcome endless = GradeWith(*Shell("read -r l; exec cat /dev/zero"), "x", "");
  EXPECT_EQ(endless.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(endless.why, HasSubstr("without a newline"));
  const Outcome nested =
      GradeWith(*Shell(Loop("head -c 900000 /dev/zero | tr \"\\\\0\" \"[\"; echo")), "x", "");
  EXPECT_EQ(nested.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(nested.why, HasSubstr("not a JSON object"));
}

TEST(Program, AFloodOnStderrDoesNotBlock) {
  const auto reward =
      Shell(Loop("head -c 3000000 /dev/zero | tr \"\\\\0\" e >&2; echo \"{\\\"score\\\": 1}\""));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
}

TEST(Program, LastWordsAreTheLast) {
  const auto reward =
      Shell("read -r l; head -c 100000 /dev/zero | tr \"\\\\0\" e >&2; echo the end >&2; exit 1");
  const Outcome outcome = GradeWith(*reward, "x", "");
  EXPECT_THAT(outcome.why, testing::EndsWith("the end"));
  EXPECT_LT(outcome.why.size(), 3000u);
}

TEST(Program, LargeRequestsAndAClosedInput) {
  const std::string large(300000, 'x');  // several times what a pipe holds
  const auto counting = Shell(Loop("echo \"{\\\"score\\\": ${#l}}\""), {{"timeout_s", "60"}});
  EXPECT_GT(GradeWith(*counting, large, "").score, 300000);
  // Never reads: the pipe fills and the program ends. No SIGPIPE for us, no hang.
  const Outcome unread = GradeWith(*Shell("exec 0<&-; exit 4"), large, "");
  EXPECT_EQ(unread.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(unread.why, HasSubstr("exited with code 4"));
}

TEST(Program, ClosedOutputIsNoted) {
  const Outcome outcome = GradeWith(*Shell("exec 1>&-; sleep 1000"), "x", "");
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("closed its output"));
}

TEST(Program, ALineTooManyIsNotTheNextAnswer) {
  const auto reward =
      Shell(Loop("n=$((n+1)); printf \"{\\\"score\\\": $n}\\n{\\\"score\\\": 700}\\n\""));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);  // a new process each
}

TEST(Program, ADeathWhileIdleCostsNoSample) {
  const std::string path = TemporaryFolder() + "/pid";
  const auto reward = Shell("echo $$ > " + path + "; " + Loop("echo \"{\\\"score\\\": 1}\""));
  EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
  const pid_t pid = std::stoi(Content(path));
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  for (int i = 0; i < 100 && !IsGone(pid); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(GradeWith(*reward, "x", "").kind, Outcome::Kind::kScored);
}

// Each process waits until three are at it: with fewer than three at a time nobody would answer.
TEST(Program, WorkersRunAtTheSameTime) {
  const std::string folder = TemporaryFolder();
  const auto reward =
      Shell(Loop("touch " + folder + "/$$; while [ $(ls " + folder +
                 " | wc -l) -lt 3 ]; do sleep 0.02; done; echo \"{\\\"score\\\": 1}\""),
            {{"workers", "3"}, {"timeout_s", "30"}});
  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(3);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] { outcomes[i] = GradeWith(*reward, "x", ""); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.score, 1) << outcome.why;
}

// Many callers, few workers: every caller gets the answer to its own request.
TEST(Program, AnswersGoToWhoAsked) {
  const auto reward =
      Shell(Loop("s=${l##*num_tokens\\\":}; echo \"{\\\"score\\\": ${s%?}}\""), {{"workers", "2"}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const Outcome outcome = GradeWith(*reward, "x", "", 100 * t + i);
        EXPECT_EQ(outcome.score, 100 * t + i) << outcome.why;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Program, NothingIsLeftBehind) {
  const std::string path = TemporaryFolder() + "/pids";
  auto reward =
      Shell("sleep 1000 & echo $$ $! >> " + path + "; " + Loop("echo \"{\\\"score\\\": 1}\""),
            {{"workers", "2"}});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(GradeWith(*reward, "x", "").score, 1);
  reward.reset();
  errno = 0;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child, dead or alive
  EXPECT_EQ(errno, ECHILD);
  std::istringstream pids(Content(path));
  int count = 0;
  for (pid_t pid; pids >> pid; ++count) EXPECT_TRUE(BecomesGone(pid)) << pid;
  EXPECT_GE(count, 2);
}

TEST(Program, InheritsNoFiles) {
  constexpr int kLeaked = 77;  // deliberately without O_CLOEXEC, and beyond what a shell opens
  ASSERT_EQ(dup2(STDERR_FILENO, kLeaked), kLeaked);
  const auto reward = Shell(Loop(
      "echo \"{\\\"score\\\": 1, \\\"why\\\": \\\"$(ls /proc/$$/fd | tr \"\\\\n\" \" \")\\\"}\""));
  const std::string seen = " " + GradeWith(*reward, "x", "").why;
  close(kLeaked);
  EXPECT_THAT(seen, HasSubstr(" 0 1 2 "));
  EXPECT_THAT(seen, testing::Not(HasSubstr(" 77 ")));
}

// A run that is killed with -9 takes its programs along. fork() before this process has any thread.
TEST(Program, DiesWithItsParent) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t run = fork();
  ASSERT_GE(run, 0);
  if (run == 0) {
    const auto reward =
        Shell("trap \"\" TERM HUP; " + Loop("echo \"{\\\"score\\\": $$}\"; exec 0</dev/zero"));
    const auto pid = static_cast<pid_t>(GradeWith(*reward, "x", "").score);
    if (write(pipe_fds[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    pause();
    _exit(1);
  }
  pid_t program = 0;
  ASSERT_EQ(read(pipe_fds[0], &program, sizeof(program)), static_cast<ssize_t>(sizeof(program)));
  ASSERT_GT(program, 0);
  EXPECT_FALSE(IsGone(program));
  kill(run, SIGKILL);
  waitpid(run, nullptr, 0);
  EXPECT_TRUE(BecomesGone(program));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(Program, CommandsThatCannotBeAreRefusedAtOnce) {
  const auto error = [](const std::string& command) {
    const auto reward = MakeReward({.name = "program", .parameters = {{"command", command}}});
    return reward.ok() ? "" : std::string(reward.status().message());
  };
  EXPECT_THAT(error("no-such-grader --fast"), HasSubstr("'no-such-grader' is not in PATH"));
  EXPECT_THAT(error("/etc/passwd"), HasSubstr("not an executable file"));
  EXPECT_THAT(error("sh -c 'open"), HasSubstr("not closed"));
  EXPECT_THAT(error(""), HasSubstr("must be given"));
}

TEST(LineProcess, AnExecutableThatIsNoneIsAStatus) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "under the thread sanitizer posix_spawn forks, and cannot report a failed exec";
#endif
  const std::string path = TemporaryFolder() + "/broken";
  std::ofstream(path) << "#!/no/such/interpreter\n";
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  const auto process = LineProcess::Start({path});
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("cannot start"));
  errno = 0;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace orrery::rewards

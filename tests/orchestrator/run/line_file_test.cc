#include "orchestrator/run/line_file.h"

#include <sys/resource.h>

#include <csignal>

#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::ElementsAre;

TEST(LineFile, AppendsAndContinues) {
  const TempFolder folder;
  const std::string path = folder / "lines";
  for (const char* line : {"one", "two"}) {
    ASSERT_OK_AND_ASSIGN(const auto file, LineFile::Open(path));
    ASSERT_OK(file->Append(line));
    ASSERT_OK(file->Sync());
  }
  EXPECT_EQ(Get(path), "one\ntwo\n");
}

TEST(LineFile, CutsATornEnd) {
  const TempFolder folder;
  const std::string path = folder / "lines";
  Put(path, "one\n" + std::string(100000, 'x'));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> lines, ReadLines(path));
  EXPECT_THAT(lines, ElementsAre("one"));
  ASSERT_OK_AND_ASSIGN(const auto file, LineFile::Open(path));
  ASSERT_OK(file->Append("two"));
  EXPECT_EQ(Get(path), "one\ntwo\n");
  Put(path, "never finished");
  ASSERT_OK_AND_ASSIGN(const auto again, LineFile::Open(path));
  EXPECT_EQ(Get(path), "");
}

// A child appends until it is killed; whatever moment that is, whole lines come back, in order, and
// all that it was told were written.
TEST(LineFile, SurvivesKillWhileWriting) {
  const TempFolder folder;
  const std::string path = folder / "lines";
  int64_t next = 0;
  for (int round = 0; round < 10; ++round) {
    int acknowledged[2];
    ASSERT_EQ(::pipe(acknowledged), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(acknowledged[0]);
      auto file = LineFile::Open(path);
      if (!file.ok()) ::_exit(1);
      for (int64_t i = next;; ++i) {
        if (!(*file)->Append(std::to_string(i) + std::string(5000, '.')).ok()) ::_exit(1);
        if (::write(acknowledged[1], &i, sizeof i) != sizeof i) ::_exit(1);
      }
    }
    ::close(acknowledged[1]);
    int64_t last = -1;
    for (int i = 0; i < 50 + round; ++i) {
      ASSERT_EQ(::read(acknowledged[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    }
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    while (::read(acknowledged[0], &last, sizeof last) == static_cast<ssize_t>(sizeof last)) {
    }
    ::close(acknowledged[0]);
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> lines, ReadLines(path));
    ASSERT_GT(static_cast<int64_t>(lines.size()), last);
    for (size_t i = 0; i < lines.size(); ++i) {
      ASSERT_EQ(lines[i], std::to_string(i) + std::string(5000, '.'));
    }
    next = static_cast<int64_t>(lines.size());
  }
}

TEST(LineFile, AFullDiskLeavesWholeLines) {
  const TempFolder folder;
  const std::string path = folder / "lines";
  const int status = InChild([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto file = LineFile::Open(path);
    if (!(*file)->Append(std::string(700, 'a')).ok()) ::_exit(1);
    const absl::Status full = (*file)->Append(std::string(700, 'b'));
    if (full.ok() || StatusText(full).find(path) == std::string::npos) ::_exit(2);
    if (!(*file)->Append(std::string(100, 'c')).ok()) ::_exit(3);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Get(path), std::string(700, 'a') + "\n" + std::string(100, 'c') + "\n");
}

TEST(LineFile, KeepLinesRewritesOnlyWhenSomethingGoes) {
  const TempFolder folder;
  const std::string path = folder / "lines";
  ASSERT_OK(KeepLines(path, [](std::string_view) { return true; }));
  EXPECT_FALSE(std::filesystem::exists(path));
  Put(path, "a\nb\nc\n");
  const auto before = std::filesystem::last_write_time(path);
  ASSERT_OK(KeepLines(path, [](std::string_view) { return true; }));
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  ASSERT_OK(KeepLines(path, [](std::string_view line) { return line != "b"; }));
  EXPECT_EQ(Get(path), "a\nc\n");
  const absl::Status status = KeepLines(path, [](std::string_view line) -> absl::StatusOr<bool> {
    if (line == "c") return InvalidInput("no");
    return true;
  });
  EXPECT_THAT(StatusText(status), ::testing::StartsWith(path + " line 2: no; "));
}

// The command in the error, run as a user would.
TEST(LineFile, DamagedLinesAreRefusedWithACommandThatLosesNothing) {
  const TempFolder folder;
  for (const char* name : {"lines", "it's a file", "-"}) {
    const std::string path = folder / name;
    std::string content = "a\n?b\nc\n?d\n?" + std::string("\0\xff", 2) + "\n?f\ng\ntorn";
    Put(path, content);
    Put(path + ".damaged", "of an earlier time");
    const auto keep = [&] {
      return KeepLines(path, [](std::string_view line) -> absl::StatusOr<bool> {
        if (line.starts_with('?')) return InvalidInput("no line");
        return line != "g";
      });
    };
    const std::string error = StatusText(keep());
    EXPECT_THAT(error, ::testing::StartsWith(path + " line 2: no line; to go on without the 4 "));
    EXPECT_THAT(error, ::testing::HasSubstr("sed '2d;4,6d'"));
    EXPECT_EQ(Get(path), content) << "what is refused changes nothing";
    const size_t command = error.find("mv ");
    ASSERT_NE(command, std::string::npos) << error;
    ASSERT_EQ(std::system(error.substr(command).c_str()), 0) << error;
    EXPECT_EQ(Get(path), "a\nc\ng\ntorn");
    EXPECT_EQ(Get(path + ".damaged-2"), content);
    EXPECT_EQ(Get(path + ".damaged"), "of an earlier time");
    ASSERT_OK(keep());
    EXPECT_EQ(Get(path), "a\nc\n");
  }
}

}  // namespace
}  // namespace orrery::run

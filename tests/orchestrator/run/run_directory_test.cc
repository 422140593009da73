#include "orchestrator/run/run_directory.h"

#include <csignal>

#include "orchestrator/base/file.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/tensorboard.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RunDirectory, CreateThenResume) {
  const TempFolder folder;
  const std::string path = folder / "runs/first";
  {
    ASSERT_OK_AND_ASSIGN(const auto run, RunDirectory::Create(path, "run:\n  name: first\n"));
    EXPECT_TRUE(fs::is_directory(run->paths().samples()));
    EXPECT_TRUE(fs::is_directory(run->paths().tensorboard()));
    EXPECT_TRUE(fs::is_directory(run->paths().checkpoints()));
  }
  ASSERT_OK_AND_ASSIGN(const auto run, RunDirectory::Resume(path));
  EXPECT_EQ(run->ReadExperiment().value(), "run:\n  name: first\n");
}

TEST(RunDirectory, ANewRunDoesNotOverwrite) {
  const TempFolder folder;
  const std::string path = folder / "run";
  ASSERT_TRUE(RunDirectory::Create(path, "a: 1\n").ok());
  const auto second = RunDirectory::Create(path, "a: 2\n");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(StatusText(second.status()), HasSubstr("orrery resume " + path));
  EXPECT_EQ(Get(path + "/experiment.yaml"), "a: 1\n");
}

TEST(RunDirectory, ResumeWantsARun) {
  const TempFolder folder;
  EXPECT_EQ(RunDirectory::Resume(folder.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunDirectory::Resume(folder / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST(RunDirectory, TheSecondProcessIsRefusedWithThePidOfTheFirst) {
  const TempFolder folder;
  const std::string path = folder / "run";
  ASSERT_OK_AND_ASSIGN(auto run, RunDirectory::Create(path, "a: 1\n"));
  const int status = InChild([&] {
    const auto resumed = RunDirectory::Resume(path);
    const auto created = RunDirectory::Create(path, "");
    const std::string pid = fmt::format("process {}:", ::getppid());
    for (const absl::Status& refused : {resumed.status(), created.status()}) {
      if (refused.code() != absl::StatusCode::kFailedPrecondition) ::_exit(1);
      if (StatusText(refused).find(pid) == std::string::npos) ::_exit(2);
    }
  });
  EXPECT_EQ(status, 0);
  run.reset();
  EXPECT_TRUE(RunDirectory::Resume(path).ok());
}

TEST(RunDirectory, TheLockDiesWithItsProcess) {
  const TempFolder folder;
  const std::string path = folder / "run";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto run = RunDirectory::Create(path, "a: 1\n");
    if (::write(ready[1], "x", 1) == 1 && run.ok()) ::pause();
    ::_exit(1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(StatusText(RunDirectory::Resume(path).status()), HasSubstr(std::to_string(pid)));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(RunDirectory::Resume(path).ok());
}

TEST(RunDirectory, AReadOnlyFolderIsAClearError) {
  const ReadOnlyFolder folder;
  if (!folder.usable()) GTEST_SKIP() << "root that may not mount finds no read-only folder";
  const absl::Status made = RunDirectory::Create(folder / "run", "a: 1\n").status();
  const absl::Status in_place = RunDirectory::Create(folder.path(), "a: 1\n").status();
  for (const absl::Status& status : {made, in_place}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(StatusText(status), HasSubstr(folder.reason()));
    EXPECT_THAT(StatusText(status), HasSubstr(folder.path()));
  }
}

TEST(RunDirectory, AFullDiskIsAClearErrorAndNoHalfRun) {
  const TinyDisk folder(16 << 10);
  Put(folder / "fill", std::string(8000, 'x'));
  const absl::Status status =
      RunDirectory::Create(folder / "run", std::string(30000, 'y')).status();
  const bool holds_run = HoldsRun(folder / "run");
  EXPECT_THAT(StatusText(status), HasSubstr(folder.reason()));
  EXPECT_FALSE(holds_run);
}

StepMetrics Metrics(int64_t step) {
  StepMetrics metrics(step);
  metrics.Set("rollout/raw_reward", static_cast<double>(step) / 7);
  return metrics;
}

// Steps 1..`last` with all their files, and a checkpoint every two steps.
void Train(RunDirectory& run, int64_t first, int64_t last) {
  const std::string root = run.paths().root;
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(run.paths().events()));
  ASSERT_OK(journal->Write("start", "from step " + std::to_string(first)));
  ASSERT_OK_AND_ASSIGN(const auto jsonl, JsonlSink::Open(run.paths().metrics(), journal.get()));
  ASSERT_OK_AND_ASSIGN(const auto tensorboard, TensorBoardSink::Open(run.paths().tensorboard()));
  for (int64_t step = first; step <= last; ++step) {
    ASSERT_OK(jsonl->Write(Metrics(step)));
    ASSERT_OK(tensorboard->Write(Metrics(step)));
    ASSERT_OK(journal->WriteForStep(step, "step", "done"));
    ASSERT_OK(
        WriteSamples(root, step, RandomGroups(static_cast<uint64_t>(step), 1, 2), TestPieces));
    if (step % 2 != 0) continue;
    ASSERT_OK_AND_ASSIGN(const std::string path, run.checkpoints().Begin(step));
    Put(path + "/model", std::to_string(step));
    ASSERT_OK(run.CommitCheckpoint(step));
  }
}

std::string Fingerprint(const RunDirectory& run) {
  std::string all = Get(run.paths().metrics());
  for (int64_t step = 1; step <= 9; ++step) all += Get(run.paths().samples_of(step));
  return all;
}

TEST(RunDirectory, TruncateAfterMakesTheRunContinueAsIfNothingHadHappened) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto whole, RunDirectory::Create(folder / "whole", "a: 1\n"));
  Train(*whole, 1, 9);
  const std::string path = folder / "broken";
  {
    ASSERT_OK_AND_ASSIGN(const auto run, RunDirectory::Create(path, "a: 1\n"));
    Train(*run, 1, 7);
    // Killed in the middle of writing step 8.
    std::ofstream(run->paths().metrics(), std::ios::app) << "{\"step\":8,\"rollout/raw_re";
    std::ofstream(run->paths().events(), std::ios::app) << "{\"time\":\"20";
    Put(run->paths().samples_of(8) + ".tmp-123", "half");
    ASSERT_TRUE(run->checkpoints().Begin(8).ok());
    for (const auto& file : fs::directory_iterator(run->paths().tensorboard())) {
      std::ofstream(file.path(), std::ios::app) << "torn";
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto run, RunDirectory::Resume(path));
  EXPECT_FALSE(fs::exists(run->paths().samples_of(8) + ".tmp-123"));
  ASSERT_OK_AND_ASSIGN(const auto latest, run->checkpoints().Latest());
  ASSERT_EQ(latest, 6);
  ASSERT_OK(run->TruncateAfter(*latest));
  ASSERT_OK(run->TruncateAfter(*latest));  // may be repeated
  EXPECT_THAT(SampleSteps(path).value(), ElementsAre(1, 2, 3, 4, 5, 6));
  Train(*run, 7, 9);
  EXPECT_EQ(Fingerprint(*run), Fingerprint(*whole));
  ASSERT_OK_AND_ASSIGN(const std::vector<Event> events, ReadEvents(run->paths().events()));
  std::vector<std::string> starts;
  std::vector<int64_t> steps;
  for (const Event& event : events) {
    if (event.step) {
      steps.push_back(*event.step);
    } else {
      starts.push_back(event.text);
    }
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(starts, ElementsAre("from step 1", "from step 7"));
}

TEST(RunDirectory, TruncateToAnEarlierStepRemovesLaterCheckpoints) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto run, RunDirectory::Create(folder / "run", "a: 1\n"));
  Train(*run, 1, 7);
  ASSERT_OK(run->TruncateAfter(2));
  EXPECT_THAT(run->checkpoints().List().value(), ElementsAre(2));
  EXPECT_EQ(ReadMetrics(run->paths().root).value().size(), 2u);
  ASSERT_OK(run->TruncateAfter(0));
  EXPECT_EQ(ReadMetrics(run->paths().root).value().size(), 0u);
  EXPECT_TRUE(SampleSteps(run->paths().root).value().empty());
  Train(*run, 0, 1);  // an evaluation before the first step is step 0
  ASSERT_OK(run->TruncateAfter(-1));
  EXPECT_EQ(Get(run->paths().metrics()), "");
  EXPECT_TRUE(fs::is_empty(run->paths().tensorboard()));
}

}  // namespace
}  // namespace orrery::run

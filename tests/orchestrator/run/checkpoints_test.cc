#include "orchestrator/run/checkpoints.h"

#include <csignal>

#include "orchestrator/base/file.h"
#include "orchestrator/base/manifest.h"
#include "orchestrator/base/status.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void Make(Checkpoints& checkpoints, int64_t step, const std::string& content = "weights") {
  ASSERT_OK_AND_ASSIGN(const std::string path, checkpoints.Begin(step));
  fs::create_directories(path + "/optimizer");
  Put(path + "/model.safetensors", content);
  Put(path + "/optimizer/moments", "m");
  ASSERT_OK(checkpoints.Commit(step));
}

std::vector<int64_t> Listed(const Checkpoints& checkpoints) { return checkpoints.List().value(); }

TEST(Checkpoints, AreThereOnlyAfterCommit) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  ASSERT_OK_AND_ASSIGN(const std::string path, checkpoints.Begin(20));
  Put(path + "/model.safetensors", "w");
  EXPECT_THAT(Listed(checkpoints), IsEmpty());
  EXPECT_EQ(checkpoints.Latest().value(), std::nullopt);
  ASSERT_OK(checkpoints.Commit(20));
  EXPECT_THAT(Listed(checkpoints), ElementsAre(20));
  EXPECT_EQ(Get(checkpoints.Path(20) + "/model.safetensors"), "w");
}

TEST(Checkpoints, NameEveryFileWithItsChecksum) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  Make(checkpoints, 20);
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(checkpoints.Path(20)));
  ASSERT_TRUE(manifest.has_value());
  ASSERT_EQ(manifest->size(), 2u);
  EXPECT_EQ((*manifest)[0].name, "model.safetensors");
  EXPECT_EQ((*manifest)[1].name, "optimizer/moments");
  ASSERT_OK(CheckFiles(checkpoints.Path(20), *manifest));
  Put(checkpoints.Path(20) + "/optimizer/moments", "n");
  EXPECT_THAT(StatusText(CheckFiles(checkpoints.Path(20), *manifest)), HasSubstr("moments"));
}

TEST(Checkpoints, AbortLeavesNothing) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  ASSERT_OK_AND_ASSIGN(const std::string path, checkpoints.Begin(20));
  Put(path + "/model.safetensors", "w");
  ASSERT_OK(checkpoints.Abort(20));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Checkpoints, SortByNumberAndIgnoreStrangers) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  for (const int64_t step : {100, 9, 0, 20}) Make(checkpoints, step);
  fs::create_directories(folder / "step-x");
  fs::create_directories(folder / "step-5-copy");
  fs::create_directories(folder / "step--5");
  Put(folder / "step-7", "a file");
  EXPECT_THAT(Listed(checkpoints), ElementsAre(0, 9, 20, 100));
  EXPECT_EQ(checkpoints.Latest().value(), 100);
}

TEST(Checkpoints, PruneKeepsNewestAndEveryM) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  for (int64_t step = 10; step <= 100; step += 10) Make(checkpoints, step);
  EXPECT_THAT(checkpoints.Prune(0, 0).value(), IsEmpty());
  EXPECT_THAT(checkpoints.Prune(2, 40).value(), ElementsAre(10, 20, 30, 50, 60, 70));
  EXPECT_THAT(Listed(checkpoints), ElementsAre(40, 80, 90, 100));
  EXPECT_THAT(checkpoints.Prune(1, 0).value(), ElementsAre(40, 80, 90));
  EXPECT_THAT(checkpoints.Prune(5, 0).value(), IsEmpty());
}

TEST(Checkpoints, ReplaceTheSameStep) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  Make(checkpoints, 3, "old");
  Make(checkpoints, 3, "new");
  EXPECT_EQ(Get(checkpoints.Path(3) + "/model.safetensors"), "new");
  EXPECT_THAT(Listed(checkpoints), ElementsAre(3));
  EXPECT_FALSE(fs::exists(folder / ".old-step-3"));
}

TEST(Checkpoints, CleanUpSettlesWhatACrashLeft) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  Make(checkpoints, 1);
  Make(checkpoints, 2);
  fs::create_directories(folder / ".writing-step-3/deep");
  fs::create_directories(folder / ".removing-step-0");
  fs::rename(folder / "step-2", folder / ".old-step-2");  // between the renames of a replacement
  fs::create_directories(folder / ".old-step-1");         // after them
  Put(folder / "notes.txt", "the user's");
  ASSERT_OK(checkpoints.CleanUp());
  EXPECT_THAT(Listed(checkpoints), ElementsAre(1, 2));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("step-1", "step-2", "notes.txt"));
}

TEST(Checkpoints, RemoveAfter) {
  const TempFolder folder;
  Checkpoints checkpoints(folder.path());
  for (const int64_t step : {5, 10, 15}) Make(checkpoints, step);
  ASSERT_OK(checkpoints.RemoveAfter(10));
  EXPECT_THAT(Listed(checkpoints), ElementsAre(5, 10));
}

// A child makes checkpoint after checkpoint, keeping two, until it is killed; each one that has its
// name is whole, and they never run out once there was one.
TEST(Checkpoints, KillAtAnyMomentLeavesWholeOnes) {
  const TempFolder folder;
  const std::string content(200000, 'w');
  RandomStream random(7);
  int64_t first = 1;
  for (int round = 0; round < 20; ++round) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Checkpoints checkpoints(folder.path());
      if (!checkpoints.CleanUp().ok()) ::_exit(1);
      for (int64_t step = first;; ++step) {
        const auto path = checkpoints.Begin(step);
        if (!path.ok()) ::_exit(1);
        for (int i = 0; i < 5; ++i) Put(*path + "/part-" + std::to_string(i), content);
        if (!checkpoints.Commit(step).ok() || !checkpoints.Prune(2, 0).ok()) ::_exit(1);
      }
    }
    // Every other time not before it made one, so that there is progress on a slow machine too.
    for (int i = 0; round % 2 == 1 && i < 3000; ++i) {
      const std::vector<int64_t> seen = Listed(Checkpoints(folder.path()));
      if (!seen.empty() && seen.back() >= first) break;
      ::usleep(10000);
    }
    ::usleep(static_cast<useconds_t>(random.Below(40000)));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    const std::vector<int64_t> steps = Listed(Checkpoints(folder.path()));
    ASSERT_TRUE(first == 1 || !steps.empty());
    for (const int64_t step : steps) {
      for (int i = 0; i < 5; ++i) {
        const std::string part = fmt::format("{}/step-{}/part-{}", folder.path(), step, i);
        ASSERT_EQ(fs::file_size(part), content.size()) << part;
      }
    }
    if (!steps.empty()) first = steps.back() + 1;
  }
  EXPECT_GT(first, 1);
}

TEST(Checkpoints, AFullDiskLeavesTheLastOne) {
  const TinyDisk folder(256 << 10);
  Checkpoints checkpoints(folder.path());
  Make(checkpoints, 1, std::string(100000, 'w'));
  ASSERT_OK_AND_ASSIGN(const std::string path, checkpoints.Begin(2));
  const absl::Status full = WriteFileAtomically(path + "/model", std::string(300000, 'w'));
  EXPECT_THAT(StatusText(full), HasSubstr(folder.reason()));
  ASSERT_OK(checkpoints.Abort(2));
  EXPECT_THAT(Listed(checkpoints), ElementsAre(1));
  Make(checkpoints, 3, std::string(100000, 'w'));
  EXPECT_THAT(Listed(checkpoints), ElementsAre(1, 3));
}

}  // namespace
}  // namespace orrery::run

// Nothing is lost: interrupted, killed, refused and out-of-disk runs.
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/e2e/kill_series.h"

namespace orrery::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A run whose first step takes minutes.
std::string EndlessExperiment(const TempFolder& folder, const std::string& name) {
  const std::string path = SmallExperiment(folder, name, 2);
  std::string text =
      std::regex_replace(Get(path), std::regex("prompts_per_step: 4"), "prompts_per_step: 100000");
  text.resize(text.find("evals:"));
  Put(path, text);
  return path;
}

bool HasBegun(const std::string& run) {
  return Get(run + "/events.jsonl").find("start") != std::string::npos;
}

TEST(Resume, AfterThreeKillsTheRunIsAsIfUninterrupted) { KillSeries(/*kills=*/3, /*seed=*/1); }

TEST(Resume, CtrlCEndsWithACheckpointAndTheRestIsEqual) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "whole", 60)}).code, 0);
  Process process(
      OrreryWords({"run", SmallExperiment(folder, "cut", 60), "--set", "checkpoint.every=0"}));
  ASSERT_TRUE(Await([&] { return StepsDone(folder / "cut") > 2 || !process.Runs(); }));
  process.Signal(SIGINT);
  const Ended cut = process.Wait();
  ASSERT_EQ(cut.code, 130) << cut;
  EXPECT_THAT(cut.err, HasSubstr("again to end at once"));
  EXPECT_THAT(cut.out, HasSubstr("orrery resume " + folder / "cut"));
  EXPECT_LT(StepsDone(folder / "cut"), 61u);
  EXPECT_EQ(Files(folder / "cut/checkpoints").size(), 1u);
  const Ended rest = Orrery({"resume", folder / "cut"});
  ASSERT_EQ(rest.code, 0) << rest;
  ExpectSameRun(folder / "whole", folder / "cut", 60);
}

TEST(Resume, AnotherNumberOfThreadsIsNotedAndChangesNothing) {
  TempFolder folder;
  for (const char* name : {"whole", "cut"}) {
    ASSERT_EQ(Orrery({"run", SmallExperiment(folder, name, 4)}).code, 0);
  }
  for (const char* name : {"whole", "cut"}) {  // two steps more, on other threads for one of them
    const std::string file = folder / (std::string(name) + "/experiment.yaml");
    std::string text = std::regex_replace(Get(file), std::regex("steps: 4\n"), "steps: 6\n");
    if (name == std::string("cut")) {
      text = std::regex_replace(text, std::regex("threads: 2\n"), "threads: 1\n");
    }
    Put(file, text);
    const Ended ended = Orrery({"resume", folder / name});
    ASSERT_EQ(ended.code, 0) << ended;
    const bool changed = name == std::string("cut");
    EXPECT_EQ(ended.out.find("goes on with 1 threads, its checkpoint was written with 2") !=
                  std::string::npos,
              changed)
        << ended;
    EXPECT_EQ(Get(folder / (std::string(name) + "/events.jsonl")).find("\"machine\"") !=
                  std::string::npos,
              changed);
  }
  EXPECT_EQ(Curve(folder / "whole"), Curve(folder / "cut"));
  ExpectSameFiles(folder / "whole/samples", folder / "cut/samples");
}

TEST(Resume, ABrokenLineOfMetricsIsRefusedWithACommandThatLosesNothing) {
  TempFolder folder;
  for (const char* name : {"whole", "cut"}) {
    ASSERT_EQ(Orrery({"run", SmallExperiment(folder, name, 4)}).code, 0);
    const std::string file = folder / (std::string(name) + "/experiment.yaml");
    Put(file, std::regex_replace(Get(file), std::regex("steps: 4\n"), "steps: 6\n"));
  }
  ASSERT_EQ(Orrery({"resume", folder / "whole"}).code, 0);
  const std::string metrics = folder / "cut/metrics.jsonl";
  std::string broken = Get(metrics);
  broken[broken.find("\"step\":2") + 6] = '\0';
  Put(metrics, broken);
  const Ended refused = Orrery({"resume", folder / "cut"});
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.err, HasSubstr(metrics + " line 3: "));
  EXPECT_EQ(Get(metrics), broken) << "what is refused changes nothing";
  const size_t command = refused.err.find("mv ");
  ASSERT_NE(command, std::string::npos) << refused;
  ASSERT_EQ(std::system(refused.err.substr(command).c_str()), 0) << refused;
  const Ended resumed = Orrery({"resume", folder / "cut"});
  ASSERT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(Get(metrics + ".damaged"), broken);
  Words whole = Lines(Curve(folder / "whole"));
  ASSERT_EQ(whole.size(), 7u);
  whole.erase(whole.begin() + 2);
  EXPECT_EQ(Lines(Curve(folder / "cut")), whole);
  ExpectSameFiles(folder / "whole/samples", folder / "cut/samples");
  EXPECT_EQ(Orrery({"plot", folder / "cut"}).code, 0);
}

TEST(Resume, CtrlCTwiceEndsAtOnce) {
  TempFolder folder;
  Process process(OrreryWords({"run", EndlessExperiment(folder, "a")}));
  ASSERT_TRUE(Await([&] { return HasBegun(folder / "a") || !process.Runs(); }));
  process.Signal(SIGINT);
  ASSERT_TRUE(Await([&] { return process.err().find("again") != std::string::npos; }, 30));
  EXPECT_TRUE(process.Runs()) << "one Ctrl-C waits for the end of the step";
  process.Signal(SIGINT);
  const Ended ended = process.Wait(30);
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.code, 130) << ended;
  EXPECT_EQ(StepsDone(folder / "a"), 0u);
}

TEST(Resume, ARunWithoutACheckpointMayBeThrownAway) {
  TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 1);
  // No file may be larger than 256 kB, and a checkpoint's are.
  const Words limited = {
      "sh", "-c", "trap '' XFSZ; ulimit -f 512; exec \"$@\"", "sh", ORRERY_BINARY, "run", file};
  const Ended failed = Process(limited).Wait();
  EXPECT_EQ(failed.code, 1) << failed;
  const Ended again = Orrery({"run", file});
  EXPECT_EQ(again.code, 2) << again;
  EXPECT_THAT(again.err, HasSubstr("remove the folder where it is over (it has no checkpoint)"));
  fs::remove_all(folder / "a");
  EXPECT_EQ(Orrery({"run", file}).code, 0);
}

TEST(Resume, AFolderWithARunIsRefusedToASecondOne) {
  TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 1);
  ASSERT_EQ(Orrery({"run", file}).code, 0);
  const std::string before = Get(folder / "a/metrics.jsonl");
  const Ended again = Orrery({"run", file});
  EXPECT_EQ(again.code, 2) << again;
  EXPECT_THAT(again.err, AllOf(HasSubstr("already holds a run"), HasSubstr("orrery resume")));
  EXPECT_THAT(again.err, Not(HasSubstr("remove the folder")));
  EXPECT_EQ(Get(folder / "a/metrics.jsonl"), before);
  const Ended complete = Orrery({"resume", folder / "a"});
  EXPECT_EQ(complete.code, 0) << complete;
  EXPECT_THAT(complete.out, HasSubstr("complete"));
}

TEST(Resume, TwoProcessesInOneFolderAreRefused) {
  TempFolder folder;
  const std::string file = EndlessExperiment(folder, "a");
  Process first(OrreryWords({"run", file}));
  ASSERT_TRUE(Await([&] { return HasBegun(folder / "a") || !first.Runs(); }));
  for (const Words& words : {Words{"run", file}, Words{"resume", folder / "a"}}) {
    const Ended second = Orrery(words);
    EXPECT_EQ(second.code, 2) << second;
    EXPECT_THAT(second.err, HasSubstr(folder / "a"));
  }
  EXPECT_THAT(Orrery({"resume", folder / "a"}).err, HasSubstr("in use"));
  EXPECT_TRUE(first.Runs());
}

// A full disk, by a limit on the size of a file: the checkpoint cannot be written.
TEST(Resume, WithoutRoomForACheckpointTheLastOneStays) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "whole", 40)}).code, 0);
  Process process(OrreryWords({"run", SmallExperiment(folder, "cut", 40)}));
  ASSERT_TRUE(Await([&] { return StepsDone(folder / "cut") > 4 || !process.Runs(); }));
  process.Signal(SIGINT);
  ASSERT_EQ(process.Wait().code, 130);
  const auto checkpoints = Files(folder / "cut/checkpoints");
  // 2 MB a file; the weights are 1.5 MB, the state of the optimizer 4.5 MB.
  const Words limited = {"sh",          "-c",          "trap '' XFSZ; ulimit -f 4096; exec \"$@\"",
                         "sh",          ORRERY_BINARY, "resume",
                         folder / "cut"};
  const Ended full = Process(limited).Wait();
  EXPECT_EQ(full.code, 1) << full;
  EXPECT_THAT(full.err, AllOf(HasSubstr("checkpoint"), HasSubstr("File too large")));
  EXPECT_EQ(Names(Files(folder / "cut/checkpoints")), Names(checkpoints));
  const Ended rest = Orrery({"resume", folder / "cut"});
  ASSERT_EQ(rest.code, 0) << rest;
  ExpectSameRun(folder / "whole", folder / "cut", 40);
}

TEST(Resume, AFullDiskIsAClearError) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  TempFolder folder;
  ::mkdir((folder / "disk").c_str(), 0755);
  if (::mount("tmpfs", (folder / "disk").c_str(), "tmpfs", 0, "size=3m") != 0) {
    GTEST_SKIP() << "no permission to mount a small file system";
  }
  const Ended full = Orrery(
      {"run", SmallExperiment(folder, "a", 40), "--set", "run.directory=" + folder / "disk"});
  EXPECT_EQ(full.code, 1) << full;
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  EXPECT_EQ(Lines(full.err).size(), 1u);
  ::umount2((folder / "disk").c_str(), MNT_DETACH);
}

TEST(Resume, AReportThatCannotBeWrittenLeavesTheRunWhole) {
  TempFolder folder;
  fs::create_directories(folder / "a/report.html/in the way");
  const Ended ended = Orrery({"run", SmallExperiment(folder, "a", 1)});
  EXPECT_NE(ended.code, 0) << ended;
  EXPECT_THAT(ended.err, HasSubstr("`orrery plot " + folder / "a" + " --html FILE`"));
  EXPECT_THAT(Orrery({"resume", folder / "a"}).out, HasSubstr("complete"));
  EXPECT_EQ(Orrery({"plot", folder / "a", "--html", folder / "page.html"}).code, 0);
}

TEST(Resume, AReadOnlyFolderIsAClearError) {
  TempFolder folder;
  const std::string sealed = folder / "sealed";
  ::mkdir(sealed.c_str(), 0555);
  const bool root = ::geteuid() == 0;
  if (root && ::mount("tmpfs", sealed.c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) {
    GTEST_SKIP() << "root writes everywhere, and may not mount a read-only file system here";
  }
  const Ended ended =
      Orrery({"run", SmallExperiment(folder, "a", 2), "--set", "run.directory=" + sealed});
  EXPECT_EQ(ended.code, 1) << ended;
  EXPECT_THAT(ended.err, HasSubstr(sealed));
  EXPECT_EQ(Lines(ended.err).size(), 1u);
  if (root) ::umount2(sealed.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace orrery::e2e

// No byte of a checkpoint can change without a resume, a replay or an evaluation saying so.
#include <functional>

#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of three steps of five, with checkpoints of steps 2 and 3, and one of the teacher's.
class CheckpointDamage : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const std::string file = SmallExperiment(*folder_, "a", 3);
    ASSERT_EQ(Orrery({"run", file}).code, 0);
    const std::string yaml = Get(Run() + "/experiment.yaml");
    Put(Run() + "/experiment.yaml", std::regex_replace(yaml, std::regex("steps: 3"), "steps: 5"));
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string Run() { return *folder_ / "a"; }
  static std::string Newest() { return Run() + "/checkpoints/step-3"; }

  struct Damage {
    std::string what, says;
  };
  // Spoils every file of the newest checkpoint in every way, one after another; the file itself
  // comes back after each.
  static void ForEachDamage(
      const std::function<void(const std::string& file, const Damage&)>& use) {
    const auto files = Files(Newest());
    ASSERT_TRUE(files.contains("checksums.txt"));
    ASSERT_GE(files.size(), 6u);
    for (const auto& [name, good] : files) {
      const std::string path = Newest() + "/" + name;
      SCOPED_TRACE(name);
      for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
        std::string bad = good;
        bad[at] ^= 0x04;
        Put(path, bad);
        use(path, {"a flipped bit in byte " + std::to_string(at), "is damaged"});
      }
      const std::string cut = name == "checksums.txt" ? "is damaged" : "bytes, checksums.txt says";
      for (const size_t length : {good.size() - 1, good.size() / 2, size_t{0}}) {
        Put(path, good.substr(0, length));
        use(path, {"cut to " + std::to_string(length), cut});
      }
      fs::remove(path);
      use(path, {"removed", "is missing"});
      Put(path, good);
    }
  }

  static TempFolder* folder_;
};
TempFolder* CheckpointDamage::folder_ = nullptr;

bool IsOfTheState(const std::string& file) {
  return file.ends_with("/optimizer.safetensors") || file.ends_with("/loop.json");
}

TEST_F(CheckpointDamage, IsRefusedByResumeWithTheWayOut) {
  const std::string curve = Get(Run() + "/metrics.jsonl");
  ForEachDamage([](const std::string& file, const Damage& damage) {
    const Ended ended = Orrery({"resume", Run()});
    EXPECT_EQ(ended.code, 2) << damage.what << ended;
    EXPECT_EQ(Lines(ended.err).size(), 1u) << ended;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(file + ": "), HasSubstr(damage.says),
                                 HasSubstr("to resume from " + Run() + "/checkpoints/step-2"),
                                 HasSubstr("mv " + Newest() + " " + Newest() + ".damaged")))
        << damage.what;
  });
  EXPECT_EQ(Get(Run() + "/metrics.jsonl"), curve) << "what is refused changes nothing";
}

TEST_F(CheckpointDamage, IsRefusedByAnEvaluationWhereItMatters) {
  ForEachDamage([](const std::string& file, const Damage& damage) {
    if (!damage.what.starts_with("a flipped bit in byte 0") && damage.what != "removed") return;
    const Ended ended = Orrery({"eval", *folder_ / "a.yaml", "--checkpoint", Newest()});
    if (IsOfTheState(file)) {
      EXPECT_EQ(ended.code, 0) << file << damage.what << ended;
      return;
    }
    EXPECT_EQ(ended.code, 2) << damage.what << ended;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(file + ": "), HasSubstr(damage.says)));
  });
}

TEST_F(CheckpointDamage, IsRefusedByReplay) {
  const std::string path = Run() + "/checkpoints/step-2/optimizer.safetensors";
  const std::string good = Get(path);
  std::string bad = good;
  bad[bad.size() - 9] ^= 0x40;
  Put(path, bad);
  const Ended ended = Orrery({"replay", Run(), "--step", "3"});
  Put(path, good);
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_THAT(ended.err, HasSubstr(path + ": is damaged"));
  EXPECT_EQ(Orrery({"replay", Run(), "--step", "3"}).code, 0);
}

TEST_F(CheckpointDamage, TheWayOutWorks) {
  TempFolder folder;
  fs::copy(Run(), folder / "a", fs::copy_options::recursive);
  const std::string newest = folder / "a/checkpoints/step-3";
  fs::resize_file(newest + "/model.safetensors", 1000);
  const Ended refused = Orrery({"resume", folder / "a"});
  ASSERT_EQ(refused.code, 2) << refused;
  const size_t command = refused.err.find("mv ");
  ASSERT_NE(command, std::string::npos);
  ASSERT_EQ(std::system(refused.err.substr(command).c_str()), 0);
  const Ended resumed = Orrery({"resume", folder / "a"});
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(StepsDone(folder / "a"), 6u);
  EXPECT_TRUE(fs::exists(newest + ".damaged")) << "nothing of the user's was removed";
}

TEST_F(CheckpointDamage, OfTheOnlyCheckpointSaysToBeginAgain) {
  TempFolder folder;
  fs::copy(Run(), folder / "a", fs::copy_options::recursive);
  fs::remove_all(folder / "a/checkpoints/step-2");
  fs::remove(folder / "a/checkpoints/step-3/config.json");
  EXPECT_THAT(Orrery({"resume", folder / "a"}).err, HasSubstr("from the beginning"));
}

// As versions wrote them that had no checksums.
TEST_F(CheckpointDamage, CannotBeSeenInAnOldCheckpointWhichIsSaid) {
  TempFolder folder;
  fs::copy(Run(), folder / "a", fs::copy_options::recursive);
  const std::string newest = folder / "a/checkpoints/step-3";
  fs::remove(newest + "/checksums.txt");
  const std::string loop = Get(newest + "/loop.json");
  Put(newest + "/loop.json", std::regex_replace(loop, std::regex(", \"has_checksums\": true"), ""));
  ASSERT_NE(Get(newest + "/loop.json"), loop);
  const Ended resumed = Orrery({"resume", folder / "a"});
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(Lines(resumed.err).size(), 1u) << resumed;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("warning: " + newest), HasSubstr("unchecked")));
  const Ended again = Orrery({"resume", folder / "a"});  // complete, from a checkpoint with them
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_EQ(again.err, "");
}

}  // namespace
}  // namespace orrery::e2e

#include "orchestrator/run/tensorboard.h"

#include <cstdio>
#include <limits>

#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

StepMetrics Step(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  StepMetrics metrics(step);
  for (const auto& [name, value] : values) metrics.Set(name, value);
  return metrics;
}

// RFC 3720, B.4.
TEST(TensorBoard, Crc32cOfTheStandard) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(Crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

// The bytes equal those of TensorBoard's own writer (make_golden_tensorboard.py).
TEST(TensorBoard, BytesOfTheRealWriter) {
  const std::string golden =
      Get(ORRERY_SOURCE_DIR "/tests/orchestrator/run/data/tensorboard_golden.tfevents");
  ASSERT_FALSE(golden.empty());
  std::string ours = ToTfRecord(FileVersionEvent(1699999999.0));
  ours += ToTfRecord(ScalarsEvent(1700000000.25, Step(0, {{"eval/gsm8k/accuracy", 0.5}})));
  ours += ToTfRecord(
      ScalarsEvent(1700000001.5, Step(1, {{"rollout/raw_reward", 0.1}, {"train/loss", -3.25e-7}})));
  ours += ToTfRecord(ScalarsEvent(
      1700000300.125, Step(300, {{"train/grad_norm", std::numeric_limits<double>::infinity()},
                                 {"perf/rss_bytes", 1.5e9}})));
  ours += ToTfRecord(ScalarsEvent(1.0, Step(int64_t{1} << 40, {{std::string(200, 'x'), 1.0}})));
  EXPECT_EQ(ours, golden);
}

TEST(TensorBoard, StepOfEvents) {
  EXPECT_EQ(StepOfEvent(ScalarsEvent(1, Step(123456789, {{"a", 1}}))).value(), 123456789);
  EXPECT_EQ(StepOfEvent(ScalarsEvent(1, Step(0, {}))).value(), 0);
  EXPECT_EQ(StepOfEvent(FileVersionEvent(1)).value(), 0);
  EXPECT_FALSE(StepOfEvent("\x2a\xff").ok());
  EXPECT_FALSE(StepOfEvent("\x2a\x7f").ok());
  EXPECT_FALSE(StepOfEvent("\x0b").ok());
  EXPECT_FALSE(StepOfEvent(std::string(20, '\xff')).ok());
}

std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TensorBoard, FilesOfOneSecondSortInTheirOrder) {
  const TempFolder folder;
  std::vector<std::string> made;
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto sink, TensorBoardSink::Open(folder.path()));
    made.push_back(sink->path());
  }
  EXPECT_EQ(Files(folder.path()), made);
}

TEST(TensorBoard, KeepsRecordsUpToAStepAndCutsATornEnd) {
  const TempFolder folder;
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(const auto sink, TensorBoardSink::Open(folder.path()));
    path = sink->path();
    ASSERT_OK(sink->Write(Step(1, {{"a", 1}})));
    ASSERT_OK(sink->Write(Step(2, {{"a", 2}})));
  }
  const std::string two = Get(path);
  for (size_t cut = 1; cut < 30; ++cut) {
    const std::string third = ToTfRecord(ScalarsEvent(7, Step(2, {{"a", 2}})));
    Put(path, two + third.substr(0, third.size() - cut));
    ASSERT_OK(KeepTensorBoardUpTo(folder.path(), 2));
    ASSERT_EQ(Get(path), two) << cut;
  }
  ASSERT_OK(KeepTensorBoardUpTo(folder.path(), 1));
  EXPECT_LT(Get(path).size(), two.size());
  EXPECT_EQ(Get(path), two.substr(0, Get(path).size()));
  ASSERT_OK(KeepTensorBoardUpTo(folder / "none", 1));
  ASSERT_OK(KeepTensorBoardUpTo(folder.path(), -1));  // from the very beginning
  EXPECT_FALSE(fs::exists(path));
}

std::string Output(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0);
  return out;
}

// TensorBoard's own reader sees every step once, also after a kill and a resume.
TEST(TensorBoard, TheRealTensorBoardReadsIt) {
  const char* named = std::getenv("ORRERY_ORACLE_PYTHON");
  const std::string python =
      named != nullptr ? named : ORRERY_SOURCE_DIR "/.deps/oracles/bin/python";
  if (!fs::exists(python)) {
    GTEST_SKIP() << "no Python with tensorboard at " << python << " (ORRERY_ORACLE_PYTHON)";
  }
  const TempFolder folder;
  const auto write = [&](int64_t first, int64_t last) {
    ASSERT_OK_AND_ASSIGN(const auto sink, TensorBoardSink::Open(folder.path()));
    for (int64_t step = first; step <= last; ++step) {
      ASSERT_OK(sink->Write(Step(
          step, {{"rollout/raw_reward", 0.25 * static_cast<double>(step)}, {"train/lr", 1e-6}})));
    }
    ASSERT_OK(sink->Flush());
  };
  write(1, 5);
  std::ofstream(Files(folder.path()).back(), std::ios::app) << "torn";
  ASSERT_OK(KeepTensorBoardUpTo(folder.path(), 3));
  write(4, 6);
  const std::string out =
      Output(fmt::format("{} {}/tests/orchestrator/run/read_tensorboard.py {} 2>/dev/null", python,
                         ORRERY_SOURCE_DIR, folder.path()));
  EXPECT_THAT(out, testing::StartsWith("rollout/raw_reward 1 0x1.0000000000000p-2\n"
                                       "rollout/raw_reward 2 0x1.0000000000000p-1\n"
                                       "rollout/raw_reward 3 0x1.8000000000000p-1\n"
                                       "rollout/raw_reward 4 0x1.0000000000000p+0\n"
                                       "rollout/raw_reward 5 0x1.4000000000000p+0\n"
                                       "rollout/raw_reward 6 0x1.8000000000000p+0\n"
                                       "train/lr 1 "));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 12);
}

}  // namespace
}  // namespace orrery::run

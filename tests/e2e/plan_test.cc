// `orrery plan`: parts, totals and the verdict, with and without room; nothing is left behind.
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::HasSubstr;

TEST(Plan, OnTheHost) {
  const TempFolder folder;
  const Ended ended = Orrery({"plan", SmallExperiment(folder, "a", 2), "--set", "run.device=cpu"});
  EXPECT_EQ(ended.code, 0) << ended;
  for (const char* part : {"weights", "gradients", "master weights", "moments", "keys and values",
                           "in all", "it fits"}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(Plan, ForAGpuThatIsNotHere) {
  const TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 2);
  const Ended fits = Orrery({"plan", file, "--gpu", "h200"});
  if (fits.err.find("built without a CUDA toolkit") != std::string::npos) {
    EXPECT_EQ(fits.code, 2) << fits;
    GTEST_SKIP() << "built without a CUDA toolkit";
  }
  EXPECT_EQ(fits.code, 0) << fits;
  EXPECT_THAT(fits.out, HasSubstr("141.00 GB"));
  EXPECT_THAT(fits.out, HasSubstr("activations of a micro-batch"));
  EXPECT_THAT(fits.out, HasSubstr("it fits"));
  const Ended refused = Orrery({"plan", file, "--gpu", "h200", "--device-memory", "1GB"});
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.out, HasSubstr("activations of a micro-batch"));
  EXPECT_THAT(refused.err, HasSubstr("trainer.micro_batch_tokens"));
  const Ended supervised = Orrery({"plan", file, "--sft", "--gpu", "b200"});
  EXPECT_EQ(supervised.code, 0) << supervised;
  EXPECT_THAT(supervised.out, HasSubstr("180.00 GB"));
}

TEST(Plan, SwapTakesOfTheHost) {
  const TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 2);
  const auto plan = [&](const std::string& tokens, const std::string& device) {
    return Orrery({"plan", file, "--set", "rollout.preemption=swap", "--set",
                   "rollout.swap_tokens=" + tokens, "--set", "run.device=auto", "--gpu", device});
  };
  const Ended fits = plan("1000", "h200");
  if (fits.err.find("built without a CUDA toolkit") != std::string::npos) {
    GTEST_SKIP() << "built without a CUDA toolkit";
  }
  EXPECT_EQ(fits.code, 0) << fits;
  EXPECT_THAT(fits.out, HasSubstr("swapped keys and values of 1008 tokens, pinned"));
  const Ended refused = plan("1000000000", "h200");
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.out, HasSubstr("swapped keys and values of 1000000000 tokens, pinned"));
  EXPECT_THAT(refused.err, HasSubstr("of the host's memory"));
  EXPECT_THAT(refused.err, HasSubstr("lower rollout.swap_tokens"));
}

// A step's samples are written while the next step's are made.
TEST(Plan, CountsTheSamplesOfTwoSteps) {
  const TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 2);
  const auto megabytes = [&](const Words& settings, const std::string& part) {
    Words words = {"plan", file, "--set", "run.device=cpu"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    const Ended ended = Orrery(words);
    EXPECT_EQ(ended.code, 0) << ended;
    std::smatch found;
    const std::regex line(part + " +([0-9.]+) MB\n");
    EXPECT_TRUE(std::regex_search(ended.out, found, line)) << ended;
    return found.empty() ? 0 : std::stod(found[1]);
  };
  const std::string samples = "samples of two steps, made and written";
  const double once = megabytes({"rollout.prompts_per_step=1000"}, samples);
  // 2 x 1000 x 4 episodes of at least 26 + 32 tokens of 16 bytes, and their texts.
  EXPECT_GE(once, 8000 * (58 * 16 + 1000) / 1e6);
  EXPECT_LE(once, 8000 * (58 * 16 + 4000) / 1e6);
  EXPECT_NEAR(megabytes({"rollout.prompts_per_step=2000"}, samples), 2 * once, 0.2);
  // Three rounds that make as many, the most that two refills come to.
  EXPECT_NEAR(megabytes({"rollout.prompts_per_step=1000", "algorithm.dynamic_sampling=true",
                         "algorithm.max_refills=2"},
                        "samples of two steps of 2 refills each"),
              3 * once, 0.2);
  EXPECT_GE(megabytes({"rollout.prompts_per_step=1000", "rollout.top_logprobs=20"}, samples),
            once + 8000 * 58 * 160 / 1e6 - 0.1);
  const std::string of_evals = "samples of an evaluation, made and written";
  const double eval = megabytes({}, of_evals);
  EXPECT_NEAR(megabytes({"evals.0.samples=100", "evals.0.temperature=1"}, of_evals), 100 * eval,
              5.1);
}

TEST(Plan, BadArguments) {
  const TempFolder folder;
  const std::string file = SmallExperiment(folder, "a", 2);
  EXPECT_EQ(Orrery({"plan"}).code, 2);
  EXPECT_EQ(Orrery({"plan", folder / "nothing.yaml"}).code, 2);
  EXPECT_EQ(Orrery({"plan", file, "--gpu", "abacus"}).code, 2);
  for (const char* size : {"much", "-1", "-5GB", "5XB", "0", "0GB", "", "99999999999EB"}) {
    const Ended ended = Orrery({"plan", file, std::string("--device-memory=") + size});
    EXPECT_EQ(ended.code, 2) << size << ended;
    EXPECT_THAT(ended.err, HasSubstr("--device-memory"));
    if (*size == 0) continue;
    EXPECT_THAT(ended.err, HasSubstr("'" + std::string(size) + "' is no size; one is 80GB"));
  }
  EXPECT_EQ(Orrery({"plan", file, "--set", "model.path=nowhere"}).code, 2);
}

}  // namespace
}  // namespace orrery::e2e

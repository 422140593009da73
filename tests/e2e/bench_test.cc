// orrery bench: what it refuses, and that what it prints belongs to what it ran.
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Bench : public ::testing::Test {
 protected:
  // Two prompts x two samples of exactly five tokens.
  Words Command(const std::string& kind, const Words& more = {}) {
    Words words = {"bench", kind, SmallExperiment(folder_, "a", 1)};
    for (const char* setting :
         {"rollout.prompts_per_step=2", "rollout.samples_per_prompt=2", "sampling.max_new_tokens=5",
          "sampling.min_new_tokens=5", "algorithm.drop_zero_std_groups=false", "run.threads=2"}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The numbers of "name":x or "name":[x,y,...].
  static std::vector<double> Numbers(const std::string& json, const std::string& name) {
    std::smatch found;
    std::vector<double> out;
    if (!std::regex_search(json, found, std::regex("\"" + name + "\":(\\[[^\\]]*\\]|[^,}]*)"))) {
      ADD_FAILURE() << "no " << name << " in " << json;
      return {0};
    }
    std::istringstream list(std::regex_replace(found[1].str(), std::regex("[\\[\\],]"), " "));
    for (double x; list >> x;) out.push_back(x);
    return out;
  }

  TempFolder folder_;
};

TEST_F(Bench, RolloutCountsWhatItSampled) {
  const Ended ended = Orrery(Command("rollout", {"--repeat", "3", "--json"}));
  ASSERT_EQ(ended.code, 0) << ended;
  ASSERT_EQ(Lines(ended.out).size(), 1u) << ended;
  EXPECT_EQ(Numbers(ended.out, "generated_tokens"), std::vector<double>{20});
  EXPECT_EQ(Numbers(ended.out, "threads"), std::vector<double>{2});
  const std::vector<double> seconds = Numbers(ended.out, "seconds");
  const std::vector<double> speed = Numbers(ended.out, "tokens_per_s");
  ASSERT_EQ(seconds.size(), 3u);
  ASSERT_EQ(speed.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(speed[i] * seconds[i], 20, 1e-9);
  std::vector<double> sorted = speed;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(Numbers(ended.out, "median_tokens_per_s"), std::vector<double>{sorted[1]});
}

TEST_F(Bench, PartsOfAStepMakeTheWhole) {
  const Ended ended = Orrery(Command("step", {"--repeat", "2", "--json"}));
  ASSERT_EQ(ended.code, 0) << ended;
  const std::vector<double> whole = Numbers(ended.out, "seconds");
  ASSERT_EQ(whole.size(), 2u);
  for (size_t i = 0; i < whole.size(); ++i) {
    double sum = 0;
    for (const char* part : {"rollout_s", "reward_s", "train_s", "sync_s", "other_s"}) {
      EXPECT_GE(Numbers(ended.out, part)[i], 0) << part;
      sum += Numbers(ended.out, part)[i];
    }
    EXPECT_NEAR(sum, whole[i], 1e-9 * whole[i]);
    EXPECT_GT(Numbers(ended.out, "train_s")[i], 0);
  }
}

TEST_F(Bench, TextForPeople) {
  const Ended ended = Orrery(Command("step", {"--repeat", "1"}));
  ASSERT_EQ(ended.code, 0) << ended;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("2 prompts x 2 samples"), HasSubstr("20 sampled tokens"),
                    HasSubstr("tokens/s"), HasSubstr("train_s"), HasSubstr("2 threads")));
  EXPECT_FALSE(fs::exists(folder_ / "a")) << "a measurement leaves no run behind";
}

TEST_F(Bench, Refusals) {
  EXPECT_EQ(Orrery({"bench"}).code, 2);
  EXPECT_EQ(Orrery({"bench", "rollout"}).code, 2);
  EXPECT_EQ(Orrery({"bench", "everything", "a.yaml"}).code, 2);
  const Ended none = Orrery(Command("rollout", {"--repeat", "0"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--repeat 0"));
  const Ended key = Orrery(Command("rollout", {"--set", "rollout.prompts=3"}));
  EXPECT_EQ(key.code, 2);
  EXPECT_THAT(key.err, HasSubstr("rollout.prompts"));
}

}  // namespace
}  // namespace orrery::e2e

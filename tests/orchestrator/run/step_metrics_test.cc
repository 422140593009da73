#include "orchestrator/run/step_metrics.h"

#include <regex>
#include <set>
#include <sstream>

#include "orchestrator/run/metric_names.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

Episode Scored(double score, int policy_tokens, FinishReason finish = FinishReason::kStop) {
  Episode episode;
  Segment prompt;
  prompt.token_ids = {1, 2, 3};
  Segment response;
  response.author = Author::kPolicy;
  response.token_ids.assign(static_cast<size_t>(policy_tokens), 5);
  response.versions.assign(static_cast<size_t>(policy_tokens), 4);
  Sample sample;
  sample.segments = {prompt, response};
  sample.finish_reason = finish;
  episode.samples = {sample};
  episode.status = EpisodeStatus::kScored;
  episode.outcome = Outcome::Scored(score, "");
  episode.outcome.parts = {{"gsm8k", score}, {"format", 0.5}};
  episode.response_text = std::to_string(policy_tokens);
  return episode;
}

TEST(StepMetrics, OfARollout) {
  EpisodeGroup mixed;
  mixed.episodes = {Scored(1, 10), Scored(0, 20, FinishReason::kLength)};
  EpisodeGroup flat;  // no spread; filtered out, yet scored
  flat.episodes = {Scored(1, 30), Scored(1, 30)};
  for (Episode& episode : flat.episodes) episode.status = EpisodeStatus::kFiltered;
  EpisodeGroup broken;
  broken.episodes = {Scored(9, 99), Scored(9, 99)};
  broken.episodes[0].status = EpisodeStatus::kFailed;
  broken.episodes[0].outcome = Outcome::Failed("grader died");
  broken.episodes[1].status = EpisodeStatus::kAborted;
  StepMetrics m(1);
  AddRolloutMetrics({mixed, flat, broken}, &m);
  EXPECT_EQ(m.Find(metric::kRawReward), 0.75);
  EXPECT_DOUBLE_EQ(*m.Find(metric::kRewardStd), std::sqrt(0.1875));
  EXPECT_EQ(m.Find("rollout/reward/format"), 0.5);
  EXPECT_EQ(m.Find(metric::kZeroStdGroupRatio), 0.5);
  EXPECT_EQ(m.Find(metric::kResponseLenMean), 22.5);
  EXPECT_EQ(m.Find(metric::kResponseLenMedian), 25);
  EXPECT_EQ(m.Find(metric::kResponseLenMin), 10);
  EXPECT_EQ(m.Find(metric::kResponseLenMax), 30);
  EXPECT_EQ(m.Find(metric::kPromptLenMean), 3);
  EXPECT_EQ(m.Find(metric::kTruncatedRatio), 0.25);
  EXPECT_EQ(m.Find(metric::kDuplicateRatio), 0.25);
  EXPECT_EQ(m.Find(metric::kVersionMin), 4);
  EXPECT_EQ(m.Find(metric::kSubmitted), 6);
  EXPECT_EQ(m.Find(metric::kScored), 2);
  EXPECT_EQ(m.Find(metric::kFailed), 1);
  EXPECT_EQ(m.Find(metric::kFiltered), 2);
  EXPECT_EQ(m.Find(metric::kAborted), 1);
}

TEST(StepMetrics, OfAStepInWhichAllFailed) {
  EpisodeGroup group;
  group.episodes = {Episode{}};
  group.episodes[0].status = EpisodeStatus::kFailed;
  group.episodes[0].outcome = Outcome::Failed("no sandbox");
  StepMetrics m(1);
  AddRolloutMetrics({group, EpisodeGroup{}}, &m);
  EXPECT_EQ(m.Find(metric::kRawReward), std::nullopt);
  EXPECT_EQ(m.Find(metric::kSubmitted), 1);
  EXPECT_EQ(m.Find(metric::kFailed), 1);
}

TEST(StepMetricsDeathTest, RunningEpisodesAreAMistake) {
  EpisodeGroup group;
  group.episodes = {Episode{}};
  StepMetrics m(1);
  EXPECT_DEATH(AddRolloutMetrics({group}, &m), "terminal state");
}

TEST(StepMetrics, OfTrainingAndTime) {
  TrainStats stats;
  stats.loss = 2;
  stats.entropy = 0.5;
  stats.num_processed_tokens = 100;
  EpisodeGroup group;
  group.episodes = {Scored(1, 10)};
  StepMetrics m(1);
  AddTrainMetrics(stats, &m);
  AddPerfMetrics({.step = 10, .rollout = 2, .reward = 1, .train = 4, .sync = 0.5, .eval = 1},
                 {group}, stats, &m);
  EXPECT_EQ(m.Find(metric::kLoss), 2);
  EXPECT_EQ(m.Find(metric::kEntropy), 0.5);
  EXPECT_EQ(m.Find(metric::kEvalSeconds), 1);
  EXPECT_EQ(m.Find(metric::kOtherSeconds), 1.5);
  EXPECT_EQ(m.Find(metric::kRolloutTokensPerSecond), 5);
  EXPECT_EQ(m.Find(metric::kTrainTokensPerSecond), 25);
  EXPECT_GT(m.Get(metric::kRssBytes, 0), 1e6);
}

// `a/b/c`, `d` in the first column of METRICS.md: a/b/c and a/b/d.
std::set<std::string> DocumentedNames() {
  std::set<std::string> names;
  std::istringstream lines(Get(std::string(ORRERY_SOURCE_DIR) + "/orchestrator/run/METRICS.md"));
  const std::regex quoted("`([^`]+)`");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    std::string folder;
    for (std::sregex_iterator it(cell.begin(), cell.end(), quoted), end; it != end; ++it) {
      const std::string name = (*it)[1];
      const size_t slash = name.rfind('/');
      if (slash != std::string::npos) folder = name.substr(0, slash + 1);
      names.insert(slash == std::string::npos ? folder + name : name);
    }
  }
  return names;
}

TEST(StepMetrics, EveryNameIsDocumentedAndNoOther) {
  const std::string header =
      Get(std::string(ORRERY_SOURCE_DIR) + "/orchestrator/run/metric_names.h");
  const std::regex constant("k\\w+ = \"([a-z]+/[a-z_/]*)\"");
  std::set<std::string> names;
  for (std::sregex_iterator it(header.begin(), header.end(), constant), end; it != end; ++it) {
    const std::string name = (*it)[1];
    if (name != metric::kEvalPrefix) {
      names.insert(name == metric::kRewardPrefix ? name + "NAME" : name);
    }
  }
  EXPECT_GT(names.size(), 50u);
  std::set<std::string> documented = DocumentedNames();
  EXPECT_GT(std::erase_if(documented, [](const auto& n) { return n.starts_with("eval/"); }), 0u);
  EXPECT_EQ(documented, names);
}

}  // namespace
}  // namespace orrery::run

#include "orchestrator/run/step_metrics.h"

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
  AddPerfMetrics({.step = 10, .rollout = 2, .reward = 1, .train = 4, .sync = 0.5}, {group}, stats,
                 &m);
  EXPECT_EQ(m.Find(metric::kLoss), 2);
  EXPECT_EQ(m.Find(metric::kEntropy), 0.5);
  EXPECT_EQ(m.Find(metric::kOtherSeconds), 2.5);
  EXPECT_EQ(m.Find(metric::kRolloutTokensPerSecond), 5);
  EXPECT_EQ(m.Find(metric::kTrainTokensPerSecond), 25);
  EXPECT_GT(m.Get(metric::kRssBytes, 0), 1e6);
}

}  // namespace
}  // namespace orrery::run

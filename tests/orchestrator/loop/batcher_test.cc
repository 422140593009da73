#include "orchestrator/loop/batcher.h"

#include <gtest/gtest.h>

#include <numeric>

namespace orrery {
namespace {

Episode MakeEpisode(uint64_t id, double score, int64_t tokens) {
  Episode episode;
  episode.episode_id = id;
  episode.status = EpisodeStatus::kScored;
  episode.outcome = Outcome::Scored(score, "");
  episode.advantage = score - 0.5;
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 10);
  Sample sample;
  sample.segments.push_back({Author::kPrompt, {1, 2, 3}, {}, {}});
  sample.segments.push_back({Author::kPolicy, ids, std::vector<float>(ids.size(), -0.25f),
                             std::vector<PolicyVersion>(ids.size(), 4)});
  episode.samples.push_back(std::move(sample));
  return episode;
}

// Groups of two episodes, one right and one wrong, of `tokens` tokens each.
std::vector<EpisodeGroup> MakeGroups(const std::vector<int64_t>& tokens) {
  std::vector<EpisodeGroup> groups;
  for (const int64_t n : tokens) {
    EpisodeGroup group;
    group.group_id = groups.size();
    for (uint64_t i = 0; i < 2; ++i) {
      group.episodes.push_back(MakeEpisode(2 * group.group_id + i, static_cast<double>(i), n));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

int64_t MaskedTokens(const TrainingBatch& batch) {
  int64_t n = 0;
  for (const TrainingSequence& s : batch.sequences) {
    n += std::accumulate(s.loss_mask.begin(), s.loss_mask.end(), int64_t{0});
  }
  return n;
}

TEST(Batcher, SequencesAreAlignedAndTrainOnlyWhatThePolicyWrote) {
  Episode episode = MakeEpisode(7, 1, 2);
  episode.samples[0].segments.push_back({Author::kTool, {50, 51}, {}, {}});
  episode.samples[0].segments.push_back({Author::kPolicy, {60}, {-0.5f}, {4}});
  const TrainingSequence s = ToSequence(episode, episode.samples[0]);
  EXPECT_EQ(s.token_ids, (std::vector<int32_t>{1, 2, 3, 10, 11, 50, 51, 60}));
  EXPECT_EQ(s.loss_mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(s.rollout_logprobs, (std::vector<float>{0, 0, 0, -0.25f, -0.25f, 0, 0, -0.5f}));
  EXPECT_EQ(s.advantages, (std::vector<float>{0, 0, 0, 0.5f, 0.5f, 0, 0, 0.5f}));
  EXPECT_EQ(s.shared_prefix, 3);
  EXPECT_EQ(s.episode_tokens, 3);
  EXPECT_EQ(s.episode_id, 7u);
}

TEST(Batcher, SamplesOfAnEpisodeShareItsDenominator) {
  std::vector<EpisodeGroup> groups = MakeGroups({4});
  Episode& episode = groups[0].episodes[1];
  episode.samples.push_back(episode.samples[0]);
  const std::vector<TrainingBatch> batches = MakeBatches(groups, {});
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].sequences.size(), 3u);
  EXPECT_EQ(batches[0].sequences[1].episode_tokens, 8);
  EXPECT_EQ(batches[0].sequences[2].episode_tokens, 8);
  EXPECT_EQ(batches[0].num_episodes, 2);
  EXPECT_EQ(batches[0].num_trained_tokens, 12);
  EXPECT_EQ(MaskedTokens(batches[0]), 12);
}

TEST(Batcher, GroupsWithoutSignalLeaveWhereAsked) {
  std::vector<EpisodeGroup> groups = MakeGroups({4, 4});
  groups[0].episodes[0].outcome.score = 1;
  EXPECT_TRUE(IsZeroStd(groups[0]));
  EXPECT_FALSE(IsZeroStd(groups[1]));
  EXPECT_EQ(MakeBatches(groups, {}).at(0).num_episodes, 2);
  BatcherOptions keep;
  keep.drop_zero_std_groups = false;
  EXPECT_EQ(MakeBatches(groups, keep).at(0).num_episodes, 4);
}

TEST(Batcher, AFailedEpisodeNeitherTrainsNorCountsForTheSpread) {
  std::vector<EpisodeGroup> groups = MakeGroups({4});
  groups[0].episodes[0].status = EpisodeStatus::kFailed;
  EXPECT_TRUE(IsZeroStd(groups[0])) << "one score is left";
  BatcherOptions keep;
  keep.drop_zero_std_groups = false;
  const std::vector<TrainingBatch> batches = MakeBatches(groups, keep);
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].sequences.size(), 1u);
  EXPECT_EQ(batches[0].sequences[0].episode_id, 1u);
}

TEST(Batcher, TruncatedEpisodesAreMaskedWhereAsked) {
  std::vector<EpisodeGroup> groups = MakeGroups({4});
  groups[0].episodes[0].samples[0].finish_reason = FinishReason::kLength;
  EXPECT_EQ(MakeBatches(groups, {}).at(0).sequences.size(), 2u);
  BatcherOptions mask;
  mask.mask_truncated = true;
  EXPECT_EQ(MakeBatches(groups, mask).at(0).sequences.size(), 1u);
}

TEST(Batcher, ARolloutWithoutSignalIsMeasuredWhole) {
  std::vector<EpisodeGroup> groups = MakeGroups({4, 3});
  for (EpisodeGroup& group : groups) {
    for (Episode& episode : group.episodes) episode.outcome.score = 1;
  }
  groups[0].episodes[0].status = EpisodeStatus::kFailed;
  groups[1].episodes[1].status = EpisodeStatus::kFiltered;
  ASSERT_TRUE(MakeBatches(groups, {}).empty());
  const TrainingBatch batch = MakeMeasuredBatch(groups);
  EXPECT_EQ(batch.sequences.size(), 3u);
  EXPECT_EQ(batch.num_episodes, 3);
  EXPECT_EQ(batch.num_trained_tokens, 4 + 3 + 3);
}

TEST(Batcher, NothingToTrainIsNoBatch) {
  EXPECT_TRUE(MakeBatches({}, {}).empty());
  EXPECT_TRUE(MakeBatches(MakeGroups({0, 0}), {}).empty());
}

// Property: whole groups, in order, all tokens once, batches near the same size.
TEST(Batcher, CutsIntoBatchesOfAboutEqualTokens) {
  const std::vector<int64_t> tokens = {5, 1, 9, 3, 3, 7, 2, 8, 4, 6, 1, 1};
  const std::vector<EpisodeGroup> groups = MakeGroups(tokens);
  const int64_t total = 2 * std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  for (int64_t steps = 1; steps <= 14; ++steps) {
    BatcherOptions options;
    options.optimizer_steps = steps;
    const std::vector<TrainingBatch> batches = MakeBatches(groups, options);
    ASSERT_LE(static_cast<int64_t>(batches.size()), steps);
    int64_t seen = 0;
    uint64_t next = 0;
    for (const TrainingBatch& batch : batches) {
      EXPECT_EQ(batch.num_trained_tokens, MaskedTokens(batch));
      EXPECT_EQ(batch.sequences.size() % 2, 0u) << "a group was cut";
      EXPECT_LE(batch.num_trained_tokens, total / steps + 1 + 2 * 9);
      for (const TrainingSequence& s : batch.sequences) EXPECT_EQ(s.episode_id, next++);
      seen += batch.num_trained_tokens;
    }
    EXPECT_EQ(seen, total) << steps;
  }
}

}  // namespace
}  // namespace orrery

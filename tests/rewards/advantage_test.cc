// Advantages: the formulas on examples by hand, and what must never change them.
#include "rewards/advantage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace orrery::rewards {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

Episode Scored(uint64_t group, double score, int num_tokens = 10) {
  Episode episode;
  episode.group_id = group;
  episode.status = EpisodeStatus::kScored;
  episode.outcome = Outcome::Scored(score, "");
  Segment segment;
  segment.author = Author::kPolicy;
  segment.token_ids.resize(num_tokens);
  episode.samples.emplace_back().segments.push_back(std::move(segment));
  return episode;
}

EpisodeGroup Group(uint64_t id, const std::vector<double>& scores) {
  EpisodeGroup group;
  group.group_id = id;
  for (const double score : scores) group.episodes.push_back(Scored(id, score));
  return group;
}

std::vector<double> Advantages(const std::vector<EpisodeGroup>& groups) {
  std::vector<double> all;
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) all.push_back(episode.advantage);
  }
  return all;
}

std::vector<double> Assign(AdvantageOptions options, std::vector<EpisodeGroup> groups) {
  AssignAdvantages(options, &groups);
  return Advantages(groups);
}

const std::vector<double> kScores = {1, 0, 0, 1, 1, 1, 0, 1};

TEST(Advantage, GrpoGoldenExample) {
  std::vector<EpisodeGroup> groups = {Group(7, kScores)};
  const std::vector<GroupSummary> summaries = AssignAdvantages({}, &groups);
  // mean 5/8; variance (5 * (3/8)^2 + 3 * (5/8)^2) / 7 = 15/56.
  const double std = std::sqrt(15.0 / 56.0);
  for (size_t i = 0; i < kScores.size(); ++i) {
    const double expected = (kScores[i] - 0.625) / (std + 1e-6);
    EXPECT_NEAR(groups[0].episodes[i].advantage, expected, 8 * kEpsilon * std::abs(expected));
    EXPECT_NEAR(groups[0].episodes[i].advantage, kScores[i] == 1 ? 0.72457 : -1.20761, 5e-6);
  }
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].group_id, 7u);
  EXPECT_EQ(summaries[0].num_members, 8);
  EXPECT_EQ(summaries[0].num_valid, 8);
  EXPECT_EQ(summaries[0].mean, 0.625);
  EXPECT_NEAR(summaries[0].std, 0.51755, 5e-6);
  EXPECT_FALSE(summaries[0].zero_std);
}

TEST(Advantage, WithoutStdIsDrGrpo) {
  AdvantageOptions no_std;
  no_std.divide_by_std = false;
  const std::vector<double> expected = {0.375, -0.625, -0.625, 0.375, 0.375, 0.375, -0.625, 0.375};
  EXPECT_EQ(Assign(no_std, {Group(1, kScores)}), expected);
  EXPECT_EQ(Assign({.estimator = Estimator::kDrGrpo}, {Group(1, kScores)}), expected);
}

TEST(Advantage, RlooLeavesOneOut) {
  const std::vector<double> scores = {3, 1, 2};
  const std::vector<double> expected = {3 - 1.5, 1 - 2.5, 2 - 2.0};
  EXPECT_EQ(Assign({.estimator = Estimator::kRloo}, {Group(1, scores)}), expected);
  // n/(n-1) times the centred score.
  const std::vector<double> rloo = RlooAdvantages(kScores), centred = DrGrpoAdvantages(kScores);
  for (size_t i = 0; i < rloo.size(); ++i) EXPECT_NEAR(rloo[i], centred[i] * 8 / 7, 4 * kEpsilon);
}

TEST(Advantage, EqualScoresGiveExactlyZero) {
  for (const double score : {0.1, 1.0, -0.3, 1e300, 1.0 / 3}) {
    for (const Estimator estimator : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo,
                                      Estimator::kReinforcePlusPlusBaseline}) {
      std::vector<EpisodeGroup> groups = {Group(1, std::vector<double>(7, score)),
                                          Group(2, kScores)};
      const auto summaries = AssignAdvantages({.estimator = estimator}, &groups);
      for (const Episode& episode : groups[0].episodes) EXPECT_EQ(episode.advantage, 0.0);
      EXPECT_TRUE(summaries[0].zero_std);
      EXPECT_FALSE(summaries[1].zero_std);
      EXPECT_NE(groups[1].episodes[0].advantage, 0.0);
    }
  }
}

TEST(Advantage, FailedMembersLeaveTheBaseline) {
  std::vector<EpisodeGroup> with_failed = {Group(1, {1, 0, 99, 1, 99, 99})};
  with_failed[0].episodes[2].status = EpisodeStatus::kFailed;
  with_failed[0].episodes[4].status = EpisodeStatus::kAborted;
  with_failed[0].episodes[5].status = EpisodeStatus::kFiltered;
  for (Episode& episode : with_failed[0].episodes) episode.advantage = 5;  // must be overwritten
  const auto summaries = AssignAdvantages({}, &with_failed);
  const std::vector<double> alone = Assign({}, {Group(1, {1, 0, 1})});
  EXPECT_EQ(Advantages(with_failed), (std::vector<double>{alone[0], alone[1], 0, alone[2], 0, 0}));
  EXPECT_EQ(summaries[0].num_members, 6);
  EXPECT_EQ(summaries[0].num_valid, 3);
}

TEST(Advantage, OneOrNoValidMemberGivesZero) {
  for (const Estimator estimator : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo,
                                    Estimator::kReinforcePlusPlusBaseline}) {
    std::vector<EpisodeGroup> groups = {Group(1, {1, 0}), Group(2, {0}), Group(3, {1}),
                                        Group(4, {})};
    groups[0].episodes[1].status = EpisodeStatus::kFailed;
    groups[1].episodes[0].status = EpisodeStatus::kFailed;
    const auto summaries = AssignAdvantages({.estimator = estimator}, &groups);
    for (const double advantage : Advantages(groups)) EXPECT_EQ(advantage, 0.0);
    ASSERT_EQ(summaries.size(), 3u);  // a group without episodes has no id to appear by
    for (const GroupSummary& summary : summaries) EXPECT_TRUE(summary.zero_std);
  }
}

// The bug of slime (#1414, #2230) and verl: a group that lost members, or arrives in pieces, is
// normalised with its neighbours when groups are cut by position.
TEST(Advantage, GroupsAreFormedByIdNotByPosition) {
  const std::vector<double> whole = Assign({}, {Group(1, {1, 0, 0, 1}), Group(2, {0, 0, 1, 0})});
  std::vector<EpisodeGroup> pieces = {Group(1, {1, 0}), Group(2, {0, 0, 1, 0}), Group(1, {0, 1})};
  const auto summaries = AssignAdvantages({}, &pieces);
  EXPECT_EQ(Advantages(pieces), (std::vector<double>{whole[0], whole[1], whole[4], whole[5],
                                                     whole[6], whole[7], whole[2], whole[3]}));
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].num_members, 4);
}

TEST(Advantage, AGroupDoesNotSeeItsNeighbours) {
  const std::vector<double> alone = Assign({}, {Group(1, kScores)});
  const std::vector<double> beside = Assign({}, {Group(1, kScores), Group(2, {50, -50, 3})});
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i], beside[i]);
}

TEST(Advantage, TruncatedMembersStay) {
  std::vector<EpisodeGroup> groups = {Group(1, kScores)};
  groups[0].episodes[1].samples[0].finish_reason = FinishReason::kLength;
  groups[0].episodes[2].trained = false;  // masked: in the baseline all the same
  AssignAdvantages({}, &groups);
  EXPECT_EQ(Advantages(groups), Assign({}, {Group(1, kScores)}));
}

// Whitening by hand: values 1, -1, 0 over 10, 20 and 30 tokens.
TEST(Whitening, WeightsByTokens) {
  std::vector<double> values = {1, -1, 0};
  WhitenByTokens({10, 20, 30}, &values);
  const double mean = -10.0 / 60;
  const double variance =
      (10 * (1 - mean) * (1 - mean) + 20 * (1 + mean) * (1 + mean) + 30 * mean * mean) / 59;
  for (size_t i = 0; i < 3; ++i) {
    const double expected = (std::vector<double>{1, -1, 0}[i] - mean) / std::sqrt(variance + 1e-8);
    EXPECT_NEAR(values[i], expected, 16 * kEpsilon);
  }
}

TEST(Whitening, MeanZeroVarianceOneOverTokens) {
  std::vector<double> values;
  std::vector<int64_t> weights;
  for (int i = 0; i < 50; ++i) {
    values.push_back(std::sin(i) * 3 + 2);
    weights.push_back(1 + i % 7);
  }
  WhitenByTokens(weights, &values);
  double total = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    total += static_cast<double>(weights[i]);
    sum += static_cast<double>(weights[i]) * values[i];
    squares += static_cast<double>(weights[i]) * values[i] * values[i];
  }
  EXPECT_NEAR(sum / total, 0, 100 * kEpsilon);
  EXPECT_NEAR(squares / (total - 1), 1, 1e-8);  // 1e-8 beneath the root
}

TEST(Whitening, DegenerateBatches) {
  std::vector<double> values = {5};
  WhitenByTokens({1}, &values);
  EXPECT_EQ(values, std::vector<double>{0});
  values = {0.1, 0.1, 7};  // the 7 has no trained token and says nothing about the spread
  WhitenByTokens({3, 4, 0}, &values);
  EXPECT_EQ(values, (std::vector<double>{0, 0, 0}));
  values = {};
  WhitenByTokens({}, &values);
  EXPECT_TRUE(values.empty());
}

TEST(Advantage, ReinforcePlusPlusWhitensTheBatch) {
  std::vector<EpisodeGroup> groups = {Group(1, {1, 0}), Group(2, {1, 1})};
  groups[0].episodes[0] = Scored(1, 1, 5);
  AssignAdvantages({.estimator = Estimator::kReinforcePlusPlus}, &groups);
  std::vector<double> expected = {1, 0, 1, 1};
  WhitenByTokens({5, 10, 10, 10}, &expected);
  EXPECT_EQ(Advantages(groups), expected);
  EXPECT_GT(groups[1].episodes[0].advantage, 0);  // the batch is the baseline, not the group
}

TEST(Advantage, ReinforcePlusPlusBaselineCentresThenWhitens) {
  std::vector<EpisodeGroup> groups = {Group(1, {1, 0, 0}), Group(2, {4, 2, 2, 2})};
  groups[0].episodes[2].trained = false;
  AssignAdvantages({.estimator = Estimator::kReinforcePlusPlusBaseline}, &groups);
  const double third = 1.0 / 3;
  std::vector<double> expected = {1 - third, -third, -third, 1.5, -0.5, -0.5, -0.5};
  WhitenByTokens({10, 10, 0, 10, 10, 10, 10}, &expected);
  const std::vector<double> advantages = Advantages(groups);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(advantages[i], expected[i], 16 * kEpsilon);
}

TEST(Advantage, WholeBatchWhiteningIsAnOptionOfAll) {
  std::vector<double> expected = Assign({}, {Group(1, kScores), Group(2, {0, 1, 5})});
  WhitenByTokens(std::vector<int64_t>(11, 10), &expected);
  EXPECT_EQ(Assign({.whiten_batch = true}, {Group(1, kScores), Group(2, {0, 1, 5})}), expected);
}

TEST(Advantage, WhiteningIsLeftToTheTrainerWhereAsked) {
  std::vector<EpisodeGroup> groups = {Group(1, {1, 0, 0}), Group(2, {1, 1})};
  AssignAdvantages({.estimator = Estimator::kReinforcePlusPlus, .leave_whitening = true}, &groups);
  EXPECT_EQ(Advantages(groups), (std::vector<double>{1, 0, 0, 1, 1}));
  groups = {Group(1, {1, 0}), Group(2, {1, 1})};
  AssignAdvantages({.estimator = Estimator::kReinforcePlusPlusBaseline, .leave_whitening = true},
                   &groups);
  EXPECT_EQ(Advantages(groups), (std::vector<double>{0.5, -0.5, 0, 0}));
}

TEST(Advantage, AlgorithmsHaveEstimators) {
  for (const char* name : {"grpo", "dapo", "gspo", "cispo"}) {
    EXPECT_EQ(ParseEstimator(name).value(), Estimator::kGrpo);
  }
  EXPECT_EQ(ParseEstimator("dr_grpo").value(), Estimator::kDrGrpo);
  EXPECT_EQ(ParseEstimator("rloo").value(), Estimator::kRloo);
  EXPECT_EQ(ParseEstimator("reinforce_plus_plus").value(), Estimator::kReinforcePlusPlus);
  EXPECT_EQ(ParseEstimator("reinforce_plus_plus_baseline").value(),
            Estimator::kReinforcePlusPlusBaseline);
  EXPECT_FALSE(ParseEstimator("ppo").ok());
}

}  // namespace
}  // namespace orrery::rewards

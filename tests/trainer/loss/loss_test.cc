// The loss as a whole: by hand, in parts, split over calls, and with bad input.
#include "trainer/loss/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/loss/sequence_data.h"

namespace orrery::trainer {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Result {
  absl::Status status;
  LossSums sums;
  std::vector<double> dlogp, dentropy;
};

Result Evaluate(const LossOptions& options, const SequenceData& data,
                const LossDenominators& denominators) {
  Result result;
  result.dlogp.assign(data.size(), 77);
  result.dentropy.assign(data.size(), 77);
  const auto loss = MakePolicyLoss(options);
  CHECK(loss.ok()) << StatusText(loss.status());
  result.status = (*loss)->Evaluate(data.view(), denominators, std::span<double>(result.dlogp),
                                    std::span<double>(result.dentropy), &result.sums);
  return result;
}

LossOptions Everything() {
  LossOptions options{.kl = KlKind::kLowVar, .kl_coef = 0.1, .entropy_coef = 0.01};
  options.dual_clip_c = 3;
  options.correction = {.kind = CorrectionKind::kMis,
                        .low = 0.5,
                        .high = 2,
                        .reject = true,
                        .reject_low = 0.4,
                        .reject_high = 2.5,
                        .veto_threshold = 0.38,
                        .batch_normalize = true};
  options.opsm_delta = 1e-4;
  return options;
}

TEST(LossTest, ByHand) {
  // Two trained tokens of an episode of four, three episodes: c = 1 / 12.
  //   token 0: log ratio 0.5, A = 1:  L = -1.28, clipped. x = 0.5: k2 = 0.125
  //   token 2: log ratio 0,   A = -2: L = 2.              x = -1: k2 = 0.5
  // loss = (0.72 - 0.1 * (1.25 + 1.25) + 0.2 * 0.625) / 12 = 0.595 / 12
  SequenceData data;
  data.Add(0.5, 1, -1.5, 0, 0.5);
  data.Add(kNan, kNan, kNan, kNan, kNan, 0);
  data.Add(0, -2, -1, 0, -1);
  data.episode_tokens = 4;
  const LossOptions options{.kl = KlKind::kK2, .kl_coef = 0.2, .entropy_coef = 0.1};
  const Result result = Evaluate(options, data, {.num_episodes = 3, .num_trained_tokens = 9});
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_NEAR(result.sums.loss, 0.595 / 12, 1e-15);
  EXPECT_NEAR(result.sums.pg_loss, 0.72 / 12, 1e-15);
  EXPECT_NEAR(result.sums.kl_loss, 0.625 / 12, 1e-15);
  EXPECT_NEAR(result.sums.entropy_loss, 2.5 / 12, 1e-15);
  EXPECT_DOUBLE_EQ(result.sums.entropy_sum, 2.5);
  EXPECT_DOUBLE_EQ(result.sums.ppo_kl_sum, -0.5);
  EXPECT_DOUBLE_EQ(result.sums.kl_sum, 0.625);
  EXPECT_DOUBLE_EQ(result.sums.ratio_sum, 1 + std::exp(0.5));
  EXPECT_EQ(result.sums.num_clipped, 1);
  EXPECT_EQ(result.sums.num_tokens, 2);
  const double r = std::exp(0.5);
  EXPECT_DOUBLE_EQ(result.sums.effective_tokens, (1 + r) * (1 + r) / (1 + r * r));
  // dlogp: 0.2 * 0.5 / 12, and (2 + 0.2 * -1) / 12; dentropy: -0.1 / 12.
  EXPECT_NEAR(result.dlogp[0], 0.1 / 12, 1e-16);
  EXPECT_EQ(result.dlogp[1], 0);
  EXPECT_NEAR(result.dlogp[2], 1.8 / 12, 1e-16);
  EXPECT_NEAR(result.dentropy[0], -0.1 / 12, 1e-16);
  EXPECT_EQ(result.dentropy[1], 0);
}

TEST(LossTest, OnPolicyTheGradientIsThatOfReinforce) {
  SequenceData data = RandomSequence(5, 40, 0);
  const LossDenominators denominators{.num_episodes = 2, .num_trained_tokens = 50};
  const Result plain = Evaluate({.algorithm = Algorithm::kReinforce}, data, denominators);
  for (const Algorithm algorithm : {Algorithm::kGrpo, Algorithm::kCispo}) {
    const Result result = Evaluate({.algorithm = algorithm}, data, denominators);
    EXPECT_EQ(result.dlogp, plain.dlogp);
    EXPECT_EQ(result.sums.num_clipped, 0);
    EXPECT_EQ(result.sums.ppo_kl_sum, 0);
    EXPECT_EQ(result.sums.ratio_sum, static_cast<double>(data.num_trained()));
    EXPECT_DOUBLE_EQ(result.sums.effective_tokens, static_cast<double>(data.num_trained()));
  }
}

TEST(LossTest, SignOfTheKlPullsTowardsTheReference) {
  // The policy gives the token more than the reference: descending must lower logp, so dlogp > 0.
  SequenceData data;
  data.Add(0, 0, -1, 0, 0.5);
  const LossDenominators one{.num_episodes = 1, .num_trained_tokens = 1};
  for (const KlKind kl : {KlKind::kK2, KlKind::kK3, KlKind::kLowVar}) {
    EXPECT_GT(Evaluate({.kl = kl, .kl_coef = 1}, data, one).dlogp[0], 0);
  }
  data.reference_logp[0] = data.logp[0] + 0.5f;
  for (const KlKind kl : {KlKind::kK2, KlKind::kK3, KlKind::kLowVar}) {
    EXPECT_LT(Evaluate({.kl = kl, .kl_coef = 1}, data, one).dlogp[0], 0);
  }
}

TEST(LossTest, SignOfTheRewardAndOfTheEntropyBonus) {
  SequenceData data;
  data.Add(0, 1);
  const LossDenominators one{.num_episodes = 1, .num_trained_tokens = 1};
  EXPECT_LT(Evaluate({}, data, one).dlogp[0], 0);  // good: descending raises logp
  EXPECT_LT(Evaluate({.entropy_coef = 0.1}, data, one).dentropy[0], 0);  // raises entropy
}

TEST(LossTest, CorrectionMultipliesThePolicyTermAlone) {
  SequenceData data;
  data.Add(0, 1, -1, std::log(4.0), 1);
  const LossDenominators one{.num_episodes = 1, .num_trained_tokens = 1};
  LossOptions options{.kl = KlKind::kK2, .kl_coef = 1};
  options.correction = {.kind = CorrectionKind::kTis};  // weight 4 -> 2
  const Result result = Evaluate(options, data, one);
  EXPECT_DOUBLE_EQ(result.sums.pg_loss, -2);
  EXPECT_DOUBLE_EQ(result.sums.kl_loss, 0.5);
  EXPECT_DOUBLE_EQ(result.dlogp[0], -2 + 1);
  EXPECT_EQ(result.sums.correction.num_bounded, 1);
}

TEST(LossTest, RejectedTokensLeaveTheNumeratorOnly) {
  SequenceData data;
  data.Add(0, 1, -1, std::log(4.0), 1);
  data.Add(0, 1, -1, 0, 1);
  const LossDenominators two{.num_episodes = 1, .num_trained_tokens = 2};
  LossOptions options{.kl = KlKind::kK2, .kl_coef = 1, .entropy_coef = 1};
  options.correction = {
      .kind = CorrectionKind::kMis, .low = 0.5, .high = 2, .mode = CorrectionMode::kMask};
  const Result result = Evaluate(options, data, two);
  EXPECT_DOUBLE_EQ(result.sums.pg_loss, -0.5);  // one of two, over two
  EXPECT_DOUBLE_EQ(result.sums.kl_loss, 0.25);
  EXPECT_DOUBLE_EQ(result.sums.entropy_loss, 0.625);
  EXPECT_DOUBLE_EQ(result.sums.entropy_sum, 2.5);  // metrics count both
  EXPECT_EQ(result.sums.correction.num_rejected, 1);
  EXPECT_EQ(result.dlogp[0], 0);
  EXPECT_EQ(result.dentropy[0], 0);
}

TEST(LossTest, BatchNormalisationDividesByTheGivenMean) {
  SequenceData data;
  data.Add(0, 1, -1, std::log(4.0));
  LossOptions options;
  options.correction = {.kind = CorrectionKind::kMis, .batch_normalize = true};
  const LossDenominators one{
      .num_episodes = 1, .num_trained_tokens = 1, .mean_correction_weight = 0.5};
  EXPECT_DOUBLE_EQ(Evaluate(options, data, one).sums.pg_loss, -4);  // 2 / 0.5
}

TEST(LossTest, OpsmSilencesBadTokensOfSequencesThatMovedAway) {
  SequenceData data;
  data.Add(-0.5, -1);
  data.Add(-0.5, 1);
  const LossDenominators one{.num_episodes = 1, .num_trained_tokens = 2};
  const Result far = Evaluate({.opsm_delta = 0.4}, data, one);
  EXPECT_EQ(far.dlogp[0], 0);
  EXPECT_NE(far.dlogp[1], 0);
  EXPECT_EQ(far.sums.num_opsm_masked, 1);
  const Result near = Evaluate({.clip_low = 0.9, .opsm_delta = 0.6}, data, one);
  EXPECT_NE(near.dlogp[0], 0);
  EXPECT_EQ(near.sums.num_opsm_masked, 0);
  // The other way round (new above old) it never acts.
  SequenceData up;
  up.Add(0.5, -1);
  EXPECT_EQ(Evaluate({.opsm_delta = 1e-4}, up, one).sums.num_opsm_masked, 0);
}

TEST(LossTest, AFullyMaskedSequenceAddsNothing) {
  SequenceData data;
  data.Add(kNan, kNan, kNan, kNan, kNan, 0);
  const Result result = Evaluate(Everything(), data, {});
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(result.sums.num_tokens, 0);
  EXPECT_EQ(result.dlogp[0], 0);
  EXPECT_EQ(result.dentropy[0], 0);
}

TEST(LossTest, SupervisedTrainingIsTheMeanCrossEntropy) {
  SequenceData data;
  data.Add(0, 1, -1);
  data.Add(0, 1, -3);
  data.old_logp.clear();
  data.rollout_logp.clear();
  data.reference_logp.clear();
  data.entropy.clear();
  const auto loss = *MakePolicyLoss(PublishedOptions(Algorithm::kReinforce));
  std::vector<float> dlogp(2);
  LossSums sums;
  ASSERT_TRUE(loss->Evaluate(data.view(), {.num_episodes = 1, .num_trained_tokens = 4},
                             std::span<float>(dlogp), std::span<float>(), &sums)
                  .ok());
  EXPECT_DOUBLE_EQ(sums.loss, 1);
  EXPECT_EQ(dlogp, std::vector<float>(2, -0.25f));
}

// --- The batch, split in different ways.

struct Batch {
  std::vector<SequenceData> sequences;
  LossDenominators denominators;
};

Batch RandomBatch(const LossOptions& options) {
  Batch batch;
  CorrectionMean mean;
  for (uint64_t i = 0; i < 64; ++i) {
    batch.sequences.push_back(RandomSequence(1000 + i, 1 + i * 7 % 53));
    batch.denominators.num_trained_tokens += batch.sequences.back().num_trained();
  }
  for (size_t i = 0; i < 64; i += 2) {  // two samples an episode
    const int64_t tokens = batch.sequences[i].num_trained() + batch.sequences[i + 1].num_trained();
    batch.sequences[i].episode_tokens = batch.sequences[i + 1].episode_tokens = tokens;
  }
  for (const SequenceData& data : batch.sequences) {
    mean += BatchWeight(options.correction, data.old_logp, data.rollout_logp, data.mask);
  }
  batch.denominators.num_episodes = 32;
  batch.denominators.horizon = 53;
  batch.denominators.mean_correction_weight = mean.mean();
  return batch;
}

struct Packed {
  SequenceData flat;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> episode_tokens;

  void Append(const SequenceData& data) {
    const auto append = [](const auto& from, auto* to) {
      to->insert(to->end(), from.begin(), from.end());
    };
    append(data.logp, &flat.logp);
    append(data.old_logp, &flat.old_logp);
    append(data.rollout_logp, &flat.rollout_logp);
    append(data.reference_logp, &flat.reference_logp);
    append(data.entropy, &flat.entropy);
    append(data.advantages, &flat.advantages);
    append(data.mask, &flat.mask);
    offsets.push_back(static_cast<int64_t>(flat.mask.size()));
    episode_tokens.push_back(data.episode_tokens);
  }
  PackedSequences view() const { return {flat.view(), offsets, episode_tokens}; }
};

struct BatchResult {
  LossSums sums;
  std::vector<std::vector<float>> dlogp;  // by sequence
};

// The sequences in the given order, in packs of `pack_size`.
BatchResult EvaluateBatch(const PolicyLoss& loss, const Batch& batch,
                          const std::vector<size_t>& order, size_t pack_size) {
  BatchResult result;
  result.dlogp.resize(order.size());
  for (size_t begin = 0; begin < order.size(); begin += pack_size) {
    const size_t end = std::min(begin + pack_size, order.size());
    Packed pack;
    for (size_t i = begin; i < end; ++i) pack.Append(batch.sequences[order[i]]);
    std::vector<float> dlogp(pack.flat.size(), 77.0f), dentropy(pack.flat.size());
    LossSums sums;
    const absl::Status status =
        loss.EvaluatePacked(pack.view(), batch.denominators, dlogp, dentropy, &sums);
    CHECK(status.ok()) << StatusText(status);
    result.sums += sums;
    for (size_t i = begin; i < end; ++i) {
      result.dlogp[order[i]].assign(dlogp.begin() + pack.offsets[i - begin],
                                    dlogp.begin() + pack.offsets[i - begin + 1]);
    }
  }
  return result;
}

void ExpectSameSums(const LossSums& a, const LossSums& b) {
  const auto near = [](double x, double y) {
    EXPECT_NEAR(x, y, 1e-12 * std::max(1.0, std::abs(x)));
  };
  near(a.loss, b.loss);
  near(a.pg_loss, b.pg_loss);
  near(a.kl_loss, b.kl_loss);
  near(a.entropy_loss, b.entropy_loss);
  near(a.entropy_sum, b.entropy_sum);
  near(a.ppo_kl_sum, b.ppo_kl_sum);
  near(a.effective_tokens, b.effective_tokens);
  near(a.correction.weight_sum, b.correction.weight_sum);
  EXPECT_EQ(a.num_tokens, b.num_tokens);
  EXPECT_EQ(a.num_clipped, b.num_clipped);
  EXPECT_EQ(a.num_opsm_masked, b.num_opsm_masked);
  EXPECT_EQ(a.correction.num_rejected, b.correction.num_rejected);
}

TEST(LossTest, DoesNotDependOnHowTheBatchIsSplit) {
  for (const Algorithm algorithm : {Algorithm::kGrpo, Algorithm::kGspo}) {
    for (const Aggregation aggregation :
         {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSum,
          Aggregation::kSeqMeanTokenSumNorm, Aggregation::kTokenSum}) {
      LossOptions options = Everything();
      options.algorithm = algorithm;
      options.aggregation = aggregation;
      const auto loss = *MakePolicyLoss(options);
      const Batch batch = RandomBatch(options);
      std::vector<size_t> order(batch.sequences.size());
      std::iota(order.begin(), order.end(), 0);
      const BatchResult whole = EvaluateBatch(*loss, batch, order, order.size());
      EXPECT_GT(whole.sums.correction.num_rejected, 0);
      EXPECT_GT(whole.sums.num_opsm_masked, 0);
      EXPECT_GT(whole.sums.correction.num_vetoed_sequences, 0);
      std::vector<size_t> other = order;
      std::reverse(other.begin(), other.end());
      std::swap(other[3], other[40]);
      for (const size_t pack_size : {1, 3, 10}) {
        const BatchResult split = EvaluateBatch(*loss, batch, other, pack_size);
        ExpectSameSums(whole.sums, split.sums);
        EXPECT_EQ(whole.dlogp, split.dlogp);  // bitwise
      }
    }
  }
}

TEST(LossTest, LocalDenominatorsWouldBeSeen) {
  // The check above must be able to fail: with the denominators of each call it does.
  const LossOptions options{.aggregation = Aggregation::kTokenMean};
  const auto loss = *MakePolicyLoss(options);
  const Batch batch = RandomBatch(options);
  LossSums global, local;
  for (const SequenceData& data : batch.sequences) {
    if (data.num_trained() == 0) continue;
    std::vector<double> dlogp(data.size()), dentropy(data.size());
    const LossDenominators own{.num_episodes = 1, .num_trained_tokens = data.num_trained()};
    for (const auto& [denominators, sums] :
         {std::pair{batch.denominators, &global}, std::pair{own, &local}}) {
      ASSERT_TRUE(loss->Evaluate(data.view(), denominators, std::span<double>(dlogp),
                                 std::span<double>(dentropy), sums)
                      .ok());
    }
  }
  EXPECT_GT(std::abs(global.loss - local.loss / 64), 1e-6);
}

// --- Bad input.

TEST(LossTest, NotFiniteIsAnErrorWithItsPlace) {
  const LossDenominators denominators{.num_episodes = 1, .num_trained_tokens = 9};
  using Array = std::vector<float> SequenceData::*;
  const std::pair<Array, const char*> arrays[] = {{&SequenceData::logp, "logp"},
                                                  {&SequenceData::old_logp, "old_logp"},
                                                  {&SequenceData::rollout_logp, "rollout_logp"},
                                                  {&SequenceData::reference_logp, "reference_logp"},
                                                  {&SequenceData::entropy, "entropy"},
                                                  {&SequenceData::advantages, "advantage"}};
  for (const auto& [array, name] : arrays) {
    for (const float bad :
         {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      SequenceData data;
      for (int i = 0; i < 5; ++i) data.Add(0.1, 1);
      (data.*array)[3] = bad;
      const Result result = Evaluate(Everything(), data, denominators);
      ASSERT_FALSE(result.status.ok()) << name;
      EXPECT_NE(StatusText(result.status).find("token 3: " + std::string(name) + " is"),
                std::string::npos)
          << result.status;
      EXPECT_EQ(result.sums.num_tokens, 0);
      data.mask[3] = 0;  // nobody looks at a masked one
      EXPECT_TRUE(Evaluate(Everything(), data, denominators).status.ok());
    }
  }
}

TEST(LossTest, WhatTheOptionsDoNotUseIsNotChecked) {
  SequenceData data;
  data.Add(0.1, 1);
  data.reference_logp[0] = data.rollout_logp[0] = kNan;
  EXPECT_TRUE(Evaluate({}, data, {.num_episodes = 1, .num_trained_tokens = 1}).status.ok());
}

TEST(LossTest, AnOverflowIsAnError) {
  SequenceData data;
  data.Add(0, 1, -1);
  data.Add(0, 1, -1000, 0, -1000);  // k3 of x = -1000
  const Result result = Evaluate({.kl = KlKind::kK3, .kl_coef = 1}, data,
                                 {.num_episodes = 1, .num_trained_tokens = 2});
  ASSERT_FALSE(result.status.ok());
  EXPECT_NE(StatusText(result.status).find("token 1"), std::string::npos) << result.status;
  EXPECT_EQ(result.sums.num_tokens, 0);
}

TEST(LossTest, AMissingHorizonIsAnError) {
  SequenceData data;
  data.Add(0, 1);
  const Result result = Evaluate({.aggregation = Aggregation::kSeqMeanTokenSumNorm}, data,
                                 {.num_episodes = 1, .num_trained_tokens = 1});
  EXPECT_NE(StatusText(result.status).find("horizon"), std::string::npos) << result.status;
}

TEST(LossTest, PackedErrorsNameTheSequence) {
  Packed pack;
  SequenceData good, bad;
  good.Add(0, 1);
  bad.Add(0, 1);
  bad.Add(kNan, 1);
  pack.Append(good);
  pack.Append(bad);
  std::vector<float> dlogp(3), dentropy(3);
  LossSums sums;
  const auto loss = *MakePolicyLoss({});
  const absl::Status status = loss->EvaluatePacked(
      pack.view(), {.num_episodes = 2, .num_trained_tokens = 3}, dlogp, dentropy, &sums);
  EXPECT_NE(StatusText(status).find("sequence 1: token 1"), std::string::npos) << status;
  EXPECT_EQ(sums.num_tokens, 0);
}

TEST(LossDeathTest, SizesMustAgree) {
  SequenceData data;
  data.Add(0, 1);
  data.Add(0, 1);
  const LossDenominators one{.num_episodes = 1, .num_trained_tokens = 2};
  SequenceData short_logp = data;
  short_logp.logp.pop_back();
  EXPECT_DEATH(Evaluate({}, short_logp, one), "logp");
  SequenceData no_reference = data;
  no_reference.reference_logp.clear();
  EXPECT_TRUE(Evaluate({}, no_reference, one).status.ok());
  EXPECT_DEATH(Evaluate({.kl = KlKind::kK1}, no_reference, one), "reference_logp");
  SequenceData no_rollout = data;
  no_rollout.rollout_logp.clear();
  EXPECT_DEATH(Evaluate(Everything(), no_rollout, one), "rollout_logp");
  SequenceData no_old = data;
  no_old.old_logp.clear();
  EXPECT_DEATH(Evaluate({}, no_old, one), "old_logp");
  SequenceData no_entropy = data;
  no_entropy.entropy.clear();
  EXPECT_DEATH(Evaluate({.entropy_coef = 1}, no_entropy, one), "entropy");
  SequenceData wrong_episode = data;
  wrong_episode.episode_tokens = 1;
  EXPECT_DEATH(Evaluate({}, wrong_episode, one), "episode_tokens");
}

}  // namespace
}  // namespace orrery::trainer

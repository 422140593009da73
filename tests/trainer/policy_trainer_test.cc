// What the trainer makes of a rollout before the loss sees it: the KL of the reward, the mean
// weight of a correction, and the measuring of tokens that nobody trains. Computed again in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/fakes/tiny_models.h"
#include "tests/trainer/training_data.h"
#include "trainer/cpu/cpu_executor.h"

namespace orrery::trainer {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr char kFamily[] = "qwen3";

using PerToken = std::vector<std::vector<float>>;

class PolicyTrainerTest : public testing::Test {
 protected:
  PolicyTrainerTest()
      : store_(fakes::LoadTiny(kFamily, kernels::DType::kFloat32)),
        batch_(MakeBatch(store_->spec().vocab_size, 5)) {
    options_.loss.aggregation = Aggregation::kTokenMean;
    options_.schedule.learning_rate = 1e-3;
  }

  // A policy that has moved: the reference with other values in a norm of the first layer.
  static std::unique_ptr<model::WeightStore> Reference() {
    auto store = fakes::LoadTiny(kFamily, kernels::DType::kFloat32);
    const model::ParamId norm = store->layout().layers[0].input_norm;
    for (int64_t i = 0; i < 8; ++i)
      fakes::Poke(store.get(), norm, i, 0.25f * static_cast<float>(i));
    return store;
  }

  std::unique_ptr<PolicyTrainer> Make(const PolicyTrainerOptions& options,
                                      std::unique_ptr<model::WeightStore> reference = nullptr) {
    auto trainer = MakeCpuTrainer(store_.get(), std::move(reference), options);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return *std::move(trainer);
  }

  PerToken Score() { return *Make(options_)->Score(batch_.sequences); }

  // Calls use(sequence, position) for every trained token.
  template <typename Use>
  void ForEachToken(const Use& use) const {
    for (size_t i = 0; i < batch_.sequences.size(); ++i) {
      for (size_t t = 0; t < batch_.sequences[i].token_ids.size(); ++t) {
        if (batch_.sequences[i].loss_mask[t]) use(i, t);
      }
    }
  }

  // Ratios are 1: the loss is minus the mean advantage.
  void ExpectLoss(const TrainStats& stats, const std::vector<double>& advantages) const {
    double sum = 0, size = 0;
    for (const double a : advantages) {
      sum -= a;
      size += std::abs(a);
    }
    const double n = static_cast<double>(batch_.num_trained_tokens);
    ASSERT_EQ(advantages.size(), static_cast<size_t>(batch_.num_trained_tokens));
    EXPECT_NEAR(stats.loss, sum / n, 4 * kEps * size / n);
  }

  std::unique_ptr<model::WeightStore> store_;
  TrainingBatch batch_;
  PolicyTrainerOptions options_;
};

class RewardKlTest : public PolicyTrainerTest {
 protected:
  RewardKlTest() {
    auto reference = Reference();
    policy_ = Score();
    auto trainer = MakeCpuTrainer(reference.get(), nullptr, options_);
    reference_ = *(*trainer)->Score(batch_.sequences);
    options_.reward_kl = KlKind::kK2;
    options_.reward_kl_coef = 0.5;
  }

  // -coef (logp - ref)^2 / 2.
  double Term(size_t i, size_t t) const {
    const double x = static_cast<double>(policy_[i][t]) - reference_[i][t];
    return -options_.reward_kl_coef * x * x / 2;
  }

  TrainStats Train(size_t num_batches = 1) {
    auto trainer = Make(options_, Reference());
    std::vector<TrainingBatch> batches(num_batches);
    for (size_t i = 0; i < batch_.sequences.size(); ++i) {
      TrainingBatch& part = batches[i * num_batches / batch_.sequences.size()];
      part.sequences.push_back(batch_.sequences[i]);
      ++part.num_episodes;
      part.num_trained_tokens += batch_.sequences[i].episode_tokens;
    }
    for (TrainingBatch& part : batches) EXPECT_TRUE(trainer->ScoreReference(&part).ok());
    const auto stats = trainer->Train(batches);
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.value_or(TrainStats{});
  }

  PerToken policy_, reference_;
};

TEST_F(RewardKlTest, IsATermOfItsOwnToken) {
  std::vector<double> advantages;
  double kl = 0;
  ForEachToken([&](size_t i, size_t t) {
    advantages.push_back(batch_.sequences[i].advantages[t] + Term(i, t));
    kl -= Term(i, t) / options_.reward_kl_coef;
  });
  const TrainStats stats = Train();
  ExpectLoss(stats, advantages);
  ASSERT_TRUE(stats.reference_kl.has_value());
  EXPECT_GT(*stats.reference_kl, 0);
  EXPECT_NEAR(*stats.reference_kl, kl / static_cast<double>(advantages.size()), 1e-12 * kl);
  EXPECT_EQ(stats.kl_loss, 0);
}

TEST_F(RewardKlTest, OfReinforcePlusPlusIsWhatFollows) {
  options_.reward_kl_to_go = true;
  std::vector<double> advantages;
  ForEachToken([&](size_t i, size_t t) {
    double to_go = 0;
    for (size_t u = t; u < batch_.sequences[i].token_ids.size(); ++u) {
      if (batch_.sequences[i].loss_mask[u]) to_go += Term(i, u);
    }
    advantages.push_back(batch_.sequences[i].advantages[t] + to_go);
  });
  ExpectLoss(Train(), advantages);

  // Whitened over the rollout: mean 0, so the loss is 0, and its gradient is not.
  options_.whiten_rewards = true;
  const TrainStats stats = Train();
  EXPECT_NEAR(stats.loss, 0, 4 * kEps);
  EXPECT_GT(stats.grad_norm, 1e-3);
}

TEST_F(RewardKlTest, IsWhitenedOverAllOptimizerSteps) {
  options_.whiten_rewards = true;
  options_.schedule.learning_rate = 0;  // the second step's ratios are 1 too
  std::vector<double> halves[2];
  double sum = 0, squares = 0, n = 0;
  ForEachToken([&](size_t i, size_t t) {
    const double a = batch_.sequences[i].advantages[t] + Term(i, t);
    halves[i * 2 / batch_.sequences.size()].push_back(a);
    sum += a;
    ++n;
  });
  for (const auto& half : halves) {
    for (const double a : half) squares += (a - sum / n) * (a - sum / n);
  }
  const double std = std::sqrt(squares / (n - 1) + 1e-8);
  double loss = 0;
  for (const auto& half : halves) {
    for (const double a : half) loss -= (a - sum / n) / std / static_cast<double>(half.size()) / 2;
  }
  EXPECT_GT(std::abs(loss), 1e-3) << "whitened step by step it would be 0";
  EXPECT_NEAR(Train(2).loss, loss, 20 * kEps);
}

TEST_F(PolicyTrainerTest, CorrectionWeightsAreDividedByTheirMeanOverTheBatch) {
  const PerToken policy = Score();
  RandomStream random(3);
  double weights = 0;
  std::vector<double> weighted;
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    batch_.sequences[i].rollout_logprobs = policy[i];
  }
  ForEachToken([&](size_t i, size_t t) {
    float& sampled = batch_.sequences[i].rollout_logprobs[t];
    sampled += static_cast<float>(random.Uniform()) - 0.5f;
    const double weight = std::min(std::exp(static_cast<double>(policy[i][t]) - sampled), 1.2);
    weights += weight;
    weighted.push_back(weight * batch_.sequences[i].advantages[t]);
  });
  options_.loss.correction = {.kind = CorrectionKind::kMis, .low = 0, .high = 1.2};
  const auto plain = Make(options_)->Train({batch_});
  ASSERT_TRUE(plain.ok()) << plain.status();
  ExpectLoss(*plain, weighted);

  store_ = fakes::LoadTiny(kFamily, kernels::DType::kFloat32);
  options_.loss.correction.batch_normalize = true;
  const auto normalised = Make(options_)->Train({batch_});
  ASSERT_TRUE(normalised.ok()) << normalised.status();
  for (double& a : weighted) a /= weights / static_cast<double>(batch_.num_trained_tokens);
  ExpectLoss(*normalised, weighted);
  EXPECT_NE(normalised->loss, plain->loss);
  ASSERT_TRUE(plain->correction.has_value());
  EXPECT_GT(plain->correction->bounded, 0);
  EXPECT_GT(plain->correction->ratio_abs_diff, 0);
}

// A sampler in bfloat16, a trainer in float32, the same checkpoint: a mismatch that nobody made up.
class MismatchTest : public PolicyTrainerTest {
 protected:
  MismatchTest() {
    const auto sampler = fakes::LoadTiny(kFamily, kernels::DType::kBFloat16);
    auto trainer = MakeCpuTrainer(sampler.get(), nullptr, options_);
    const PerToken sampled = *(*trainer)->Score(batch_.sequences), policy = Score();
    for (size_t i = 0; i < batch_.sequences.size(); ++i) {
      batch_.sequences[i].rollout_logprobs = sampled[i];
    }
    ForEachToken([&](size_t i, size_t t) {
      const double d = static_cast<double>(policy[i][t]) - sampled[i][t];
      tokens_.push_back({i, std::exp(d), batch_.sequences[i].advantages[t]});
      distances_.push_back(std::abs(d));
    });
  }

  // Trains with the correction; expects the weights that `weigh` gives ratios, and so many of them
  // bounded and rejected.
  template <typename Weigh>
  void Expect(const CorrectionOptions& correction, const Weigh& weigh, double bounded,
              double rejected) {
    store_ = fakes::LoadTiny(kFamily, kernels::DType::kFloat32);
    options_.loss.correction = correction;
    const auto stats = Make(options_)->Train({batch_});
    ASSERT_TRUE(stats.ok()) << stats.status();
    const auto n = static_cast<double>(tokens_.size());
    std::vector<double> weighted;
    double ratios = 0, distances = 0;
    for (const Token& token : tokens_) {
      weighted.push_back(weigh(token) * token.advantage);
      ratios += token.ratio / n;
      distances += std::abs(token.ratio - 1) / n;
    }
    ExpectLoss(*stats, weighted);
    ASSERT_TRUE(stats->correction.has_value());
    EXPECT_NEAR(stats->correction->ratio, ratios, 1e-12);
    EXPECT_NEAR(stats->correction->ratio_abs_diff, distances, 1e-12);
    EXPECT_NEAR(stats->correction->bounded, bounded / n, 1e-12);
    EXPECT_NEAR(stats->correction->rejected, rejected / n, 1e-12);
    EXPECT_EQ(stats->train_rollout_logprob_abs_diff_max,
              *std::max_element(distances_.begin(), distances_.end()));
  }

  struct Token {
    size_t sequence;
    double ratio, advantage;
  };
  std::vector<Token> tokens_;
  std::vector<double> distances_;
};

TEST_F(MismatchTest, IsCorrectedByEveryCorrectionAsItsDefinitionSays) {
  // Bounds that half of the tokens are outside of.
  std::vector<double> sorted = distances_;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_GT(sorted[sorted.size() / 4], 0);
  const double low = std::exp(-sorted[sorted.size() / 2]), high = 1 / low;
  const auto inside = [&](const Token& t) { return t.ratio >= low && t.ratio <= high; };
  const auto outside = static_cast<double>(
      std::count_if(tokens_.begin(), tokens_.end(), [&](const Token& t) { return !inside(t); }));
  ASSERT_GT(outside, static_cast<double>(tokens_.size()) / 4);

  Expect(
      {.kind = CorrectionKind::kTis, .low = low, .high = high},
      [&](const Token& t) { return std::clamp(t.ratio, low, high); }, outside, 0);
  Expect(
      {.kind = CorrectionKind::kTis, .low = 0, .high = 1e6}, [](const Token& t) { return t.ratio; },
      0, 0);
  Expect(
      {.kind = CorrectionKind::kIcePop, .low = low, .high = high},
      [&](const Token& t) { return inside(t) ? t.ratio : 0; }, outside, 0);
  CorrectionOptions mis{.kind = CorrectionKind::kMis, .low = low, .high = high};
  mis.mode = CorrectionMode::kMask;
  Expect(
      mis, [&](const Token& t) { return inside(t) ? t.ratio : 0; }, outside, outside);
  // A veto of the least likely token: its sequence goes, and no other.
  const auto least =
      std::min_element(tokens_.begin(), tokens_.end(),
                       [](const Token& a, const Token& b) { return a.ratio < b.ratio; });
  const size_t vetoed = least->sequence;
  mis = {.kind = CorrectionKind::kMis, .low = 0, .high = 1e6};
  mis.veto_threshold = least->ratio * (1 + 1e-9);
  const auto gone = static_cast<double>(std::count_if(
      tokens_.begin(), tokens_.end(), [&](const Token& t) { return t.sequence == vetoed; }));
  Expect(
      mis, [&](const Token& t) { return t.sequence == vetoed ? 0 : t.ratio; }, 0, gone);
}

TEST_F(PolicyTrainerTest, MeasuringTellsWhatTrainingWouldAndChangesNothing) {
  const PerToken policy = Score();
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    batch_.sequences[i].rollout_logprobs = policy[i];
  }
  auto trainer = Make(options_);
  const uint64_t before = store_->Checksum();
  const auto measured = trainer->Measure(batch_);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(store_->Checksum(), before);
  EXPECT_EQ(trainer->optimizer_steps(), 0);
  const auto trained = trainer->Train({batch_});
  ASSERT_TRUE(trained.ok()) << trained.status();
  EXPECT_GT(measured->entropy, 0);
  EXPECT_NEAR(measured->entropy, trained->entropy, 1e-9);
  EXPECT_EQ(measured->train_rollout_logprob_abs_diff_max, 0);
  EXPECT_EQ(measured->learning_rate, trained->learning_rate);
  EXPECT_EQ(measured->num_trained_tokens, 0);
  EXPECT_EQ(measured->grad_norm, 0);
  EXPECT_TRUE(trainer->Measure({}).ok());

  batch_.sequences[2].rollout_logprobs.back() += 0.5f;
  const auto moved = trainer->Measure(batch_);
  EXPECT_GE(moved->train_rollout_logprob_abs_diff_max, 0.25);
}

}  // namespace
}  // namespace orrery::trainer

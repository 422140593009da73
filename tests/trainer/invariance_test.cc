// What a training step does not depend on, what it leaves alone when it fails, and its gradient by
// finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/thread_pool.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/model/temp_folder.h"
#include "tests/trainer/training_data.h"
#include "trainer/cpu/cpu_executor.h"
#include "trainer/cpu/training_bytes.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using model::WeightStore;

PolicyTrainerOptions Options() {
  PolicyTrainerOptions options;
  options.loss.entropy_coef = 0.01;
  options.optimizer.weight_decay = 0.1;
  options.schedule.learning_rate = 1e-3;
  return options;
}

std::unique_ptr<PolicyTrainer> MakeTrainer(WeightStore* store,
                                           const PolicyTrainerOptions& options) {
  auto trainer = MakeCpuTrainer(store, nullptr, options);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

std::vector<float> GradientOf(WeightStore* store, const TrainingBatch& batch,
                              const PolicyTrainerOptions& options) {
  auto gradient = MakeTrainer(store, options)->Gradient(batch);
  EXPECT_TRUE(gradient.ok()) << gradient.status();
  return *std::move(gradient);
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return Norm(difference) / Norm(b);
}

class InvarianceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    store_ = Load();
    batch_ = MakeBatch(store_->spec().vocab_size, 11);
  }
  std::unique_ptr<WeightStore> Load(DType dtype = DType::kFloat32) const {
    return fakes::LoadTiny(GetParam(), dtype);
  }
  // A trainer that never saw trouble, one step.
  uint64_t ChecksumAfterStep(const TrainingBatch& batch) const {
    const auto store = Load();
    EXPECT_TRUE(MakeTrainer(store.get(), Options())->Train({batch}).ok());
    return store->Checksum();
  }
  std::unique_ptr<WeightStore> store_;
  TrainingBatch batch_;
};

// More micro-batches than are in flight on two threads, and as many as on 25.
TEST_P(InvarianceTest, GradientDoesNotDependOnHowManyMicroBatchesAreInFlight) {
  const TrainingBatch many = MakeBatch(store_->spec().vocab_size, 12, /*groups=*/20);
  PolicyTrainerOptions options = Options();
  options.share_prefix = false;
  options.micro_batch_tokens = 1;
  ASSERT_GT(many.sequences.size(), static_cast<size_t>(MicroBatchesInFlight(2)));
  ASSERT_LE(many.sequences.size(), static_cast<size_t>(MicroBatchesInFlight(25)));
  kernels::SetNumThreads(2);
  const std::vector<float> few_at_once = GradientOf(store_.get(), many, options);
  kernels::SetNumThreads(25);
  const std::vector<float> all_at_once = GradientOf(store_.get(), many, options);
  kernels::SetNumThreads(0);
  EXPECT_EQ(few_at_once, all_at_once);
}

TEST_P(InvarianceTest, GradientDoesNotDependOnPackingSharingOrRecompute) {
  PolicyTrainerOptions plain = Options();
  plain.share_prefix = false;
  const std::vector<float> expected = GradientOf(store_.get(), batch_, plain);
  ASSERT_GT(Norm(expected), 0);
  for (const bool share : {false, true}) {
    for (const bool recompute : {false, true}) {
      for (const int64_t tokens : {1, 90, 100000}) {
        PolicyTrainerOptions options = Options();
        options.share_prefix = share;
        options.recompute = recompute;
        options.micro_batch_tokens = tokens;
        EXPECT_LE(RelativeDistance(GradientOf(store_.get(), batch_, options), expected), 1e-6)
            << "share " << share << " recompute " << recompute << " tokens " << tokens;
      }
    }
  }
  TrainingBatch backwards = batch_;
  std::reverse(backwards.sequences.begin(), backwards.sequences.end());
  EXPECT_LE(RelativeDistance(GradientOf(store_.get(), backwards, plain), expected), 1e-6);
}

TEST_P(InvarianceTest, RecomputeIsBitwiseTheSame) {
  PolicyTrainerOptions options = Options();
  const std::vector<float> expected = GradientOf(store_.get(), batch_, options);
  options.recompute = true;
  EXPECT_EQ(GradientOf(store_.get(), batch_, options), expected);
}

TEST_P(InvarianceTest, ThreadsChangeNoBit) {
  for (const int64_t tokens : {90, 100000}) {
    PolicyTrainerOptions options = Options();
    options.micro_batch_tokens = tokens;
    std::vector<std::vector<float>> gradients;
    std::vector<uint64_t> checksums;
    for (const int threads : {1, 2, 5}) {
      kernels::SetNumThreads(threads);
      gradients.push_back(GradientOf(store_.get(), batch_, options));
      const auto store = Load();
      ASSERT_TRUE(MakeTrainer(store.get(), options)->Train({batch_, batch_}).ok());
      checksums.push_back(store->Checksum());
    }
    kernels::SetNumThreads(0);
    EXPECT_EQ(gradients[0], gradients[1]);
    EXPECT_EQ(gradients[0], gradients[2]);
    EXPECT_EQ(checksums[0], checksums[1]);
    EXPECT_EQ(checksums[0], checksums[2]);
  }
}

TEST_P(InvarianceTest, LossDoesNotDependOnPacking) {
  std::vector<TrainStats> all;
  for (const int64_t tokens : {1, 90, 100000}) {
    const auto store = Load();
    PolicyTrainerOptions options = Options();
    options.micro_batch_tokens = tokens;
    const auto stats = MakeTrainer(store.get(), options)->Train({batch_});
    ASSERT_TRUE(stats.ok()) << stats.status();
    all.push_back(*stats);
  }
  // The log-probs are bitwise equal, so that only sums in double differ.
  const double scale = 1e-13 * 100;
  for (const TrainStats& stats : all) {
    EXPECT_NEAR(stats.loss, all[0].loss, scale);
    EXPECT_NEAR(stats.entropy, all[0].entropy, scale);
    EXPECT_NEAR(stats.grad_norm, all[0].grad_norm, 1e-6 * all[0].grad_norm);
    EXPECT_EQ(stats.num_trained_tokens, batch_.num_trained_tokens);
  }
  EXPECT_GE(all[0].num_processed_tokens, all[2].num_processed_tokens);
}

TEST_P(InvarianceTest, ABadAdvantageNamesTheEpisodeAndChangesNothing) {
  const auto trainer = MakeTrainer(store_.get(), Options());
  const uint64_t before = store_->Checksum();
  TrainingBatch bad = batch_;
  for (const float value : {std::nanf(""), INFINITY}) {
    std::fill(bad.sequences[7].advantages.begin(), bad.sequences[7].advantages.end(), value);
    const auto stats = trainer->Train({bad});
    ASSERT_FALSE(stats.ok()) << value;
    EXPECT_NE(stats.status().message().find("episode 7 "), absl::string_view::npos)
        << stats.status();
    EXPECT_EQ(store_->Checksum(), before);
    EXPECT_EQ(trainer->optimizer_steps(), 0);
    EXPECT_EQ(trainer->version(), 0u);
  }
  ASSERT_TRUE(trainer->Train({batch_}).ok());
  EXPECT_EQ(store_->Checksum(), ChecksumAfterStep(batch_));
}

// Every value of the loss is finite, their sum in the gradient is not.
TEST_P(InvarianceTest, AnOverflowingGradientNamesTheEpisode) {
  PolicyTrainerOptions options = Options();
  options.loss.aggregation = Aggregation::kTokenSum;
  const auto trainer = MakeTrainer(store_.get(), options);
  const uint64_t before = store_->Checksum();
  TrainingBatch bad = batch_;
  std::fill(bad.sequences[7].advantages.begin(), bad.sequences[7].advantages.end(), 3e38f);
  const auto stats = trainer->Train({bad});
  ASSERT_FALSE(stats.ok());
  EXPECT_NE(stats.status().message().find("episode 7 "), absl::string_view::npos) << stats.status();
  EXPECT_EQ(store_->Checksum(), before);
  EXPECT_EQ(trainer->optimizer_steps(), 0);
}

TEST_P(InvarianceTest, ABrokenWeightIsReportedAndForgotten) {
  const auto trainer = MakeTrainer(store_.get(), Options());
  std::vector<float> good(static_cast<size_t>(store_->layout().num_elements));
  store_->CopyTo(good);
  fakes::Poke(store_.get(), store_->layout().layers[0].qkv, 5, std::nanf(""));
  const uint64_t broken = store_->Checksum();
  for (const size_t batches : {1, 2}) {
    const auto stats = trainer->Train(std::vector<TrainingBatch>(batches, batch_));
    ASSERT_FALSE(stats.ok());
    EXPECT_NE(stats.status().message().find("episode "), absl::string_view::npos) << stats.status();
    EXPECT_EQ(store_->Checksum(), broken);
    EXPECT_EQ(trainer->optimizer_steps(), 0);
  }
  store_->BeginUpdate();
  store_->Assign(good);
  store_->Commit(2);
  ASSERT_TRUE(trainer->Train({batch_}).ok());
  EXPECT_EQ(store_->Checksum(), ChecksumAfterStep(batch_));
}

TEST_P(InvarianceTest, ResumedTrainingIsBitwiseTheSame) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<TrainingBatch> steps;
    for (uint64_t i = 0; i < 4; ++i) steps.push_back(MakeBatch(store_->spec().vocab_size, i));
    const auto whole = Load(dtype);
    const auto uninterrupted = MakeTrainer(whole.get(), Options());
    const TempFolder folder;
    std::vector<TrainStats> expected;
    for (size_t i = 0; i < steps.size(); ++i) {
      auto stats = uninterrupted->Train({steps[i]});
      ASSERT_TRUE(stats.ok()) << stats.status();
      expected.push_back(*stats);
      if (i == 1) {
        ASSERT_TRUE(uninterrupted->Save(folder.path()).ok());
      }
    }
    const auto resumed = Load(dtype);
    const auto trainer = MakeTrainer(resumed.get(), Options());
    ASSERT_TRUE(trainer->Load(folder.path()).ok());
    EXPECT_EQ(trainer->version(), 2u);
    // What a peer would load from the folder is what is trained.
    WeightStore peer(resumed->spec(), dtype);
    peer.BeginUpdate();
    ASSERT_TRUE(peer.LoadCheckpoint(folder.path()).ok());
    peer.Commit(2);
    EXPECT_EQ(peer.Checksum(), resumed->Checksum());
    for (size_t i = 2; i < steps.size(); ++i) {
      const auto stats = trainer->Train({steps[i]});
      ASSERT_TRUE(stats.ok());
      EXPECT_EQ(stats->loss, expected[i].loss);
      EXPECT_EQ(stats->grad_norm, expected[i].grad_norm);
      EXPECT_EQ(stats->learning_rate, expected[i].learning_rate);
    }
    EXPECT_EQ(resumed->Checksum(), whole->Checksum());
    EXPECT_EQ(trainer->version(), uninterrupted->version());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, InvarianceTest,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

// GRPO's loss with the old log-probs held fixed, in double from float32 log-probs.
class FiniteDifferenceTest : public testing::TestWithParam<const char*> {
 protected:
  double Loss(PolicyTrainer* trainer, const TrainingBatch& batch) {
    const auto scores = trainer->Score(batch.sequences);
    EXPECT_TRUE(scores.ok()) << scores.status();
    if (old_.empty()) old_ = *scores;
    double loss = 0;
    rounding_ = 0;
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const TrainingSequence& s = batch.sequences[i];
      for (size_t t = 0; t < s.token_ids.size(); ++t) {
        if (!s.loss_mask[t]) continue;
        const double ratio =
            std::exp(static_cast<double>((*scores)[i][t]) - static_cast<double>(old_[i][t]));
        EXPECT_GT(ratio, 0.8);  // nothing is clipped
        EXPECT_LT(ratio, 1.2);
        const double weight = static_cast<double>(s.advantages[t]) /
                              static_cast<double>(s.episode_tokens * batch.num_episodes);
        loss -= weight * ratio;
        // A log-prob carries the rounding of some dozens of operations on numbers of its size;
        // those of different tokens are independent.
        const double error = 16 * 0x1p-24 * (1 + std::abs((*scores)[i][t]));
        rounding_ += weight * weight * error * error;
      }
    }
    rounding_ = std::sqrt(rounding_);
    return loss;
  }
  std::vector<std::vector<float>> old_;
  double rounding_ = 0;
};

TEST_P(FiniteDifferenceTest, WholeGradientOfGrpo) {
  const auto store = fakes::LoadTiny(GetParam(), DType::kFloat32);
  PolicyTrainerOptions options;
  options.loss.aggregation = Aggregation::kSeqMeanTokenMean;
  options.micro_batch_tokens = 150;
  const auto trainer = MakeTrainer(store.get(), options);
  const TrainingBatch batch = MakeBatch(store->spec().vocab_size, 4, 3, 3);
  Loss(trainer.get(), batch);
  const auto gradient = trainer->Gradient(batch);
  ASSERT_TRUE(gradient.ok());
  std::vector<float> start(gradient->size());
  store->CopyTo(start);
  PolicyVersion version = 1;
  for (const model::Param& p : store->layout().params) {
    // Along each parameter's own gradient the derivative is its norm.
    const std::span<const float> g(gradient->data() + p.offset,
                                   static_cast<size_t>(p.num_elements()));
    const double norm = Norm(g);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = start;
      for (size_t i = 0; i < g.size(); ++i) {
        moved[p.offset + i] += static_cast<float>(distance * g[i] / norm);
      }
      store->BeginUpdate();
      store->Assign(moved);
      store->Commit(version++);
      return Loss(trainer.get(), batch);
    };
    const auto slope = [&](double h) { return (loss_at(h) - loss_at(-h)) / (2 * h); };
    const double h = 0.01;
    const double coarse = slope(h), fine = slope(h / 2);
    // Error of the finer difference: a third of the two's distance (it falls with h squared), and
    // rounding of the losses. Extrapolated, what is left is of order h^4.
    const double extrapolated = fine + (fine - coarse) / 3;
    const double tolerance = std::abs(fine - coarse) / 3 + 4 * rounding_ / h;
    EXPECT_NEAR(extrapolated, norm, tolerance)
        << "parameter kind " << static_cast<int>(p.kind) << " of layer " << p.layer;
    EXPECT_LT(tolerance, 0.1 * norm)
        << "the test sees nothing of kind " << static_cast<int>(p.kind);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FiniteDifferenceTest,
                         testing::Values("llama", "llama3", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace orrery::trainer

// The trainer on one rank: packs, runs the model forward and backward, steps the optimizer and
// writes the new weights where the rollout engine reads them (the WeightStore is shared; a sync is
// Commit).
//
// Small models train micro-batches side by side on the threads, each into a gradient buffer of its
// own; large ones run one micro-batch at a time on all threads. Either way gradients are summed in
// micro-batch order, so a step is bitwise the same with any number of threads.
//
// One thread calls. Nobody may sample from the store while Train or Load runs.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orchestrator/interfaces.h"
#include "trainer/loss/kl.h"
#include "trainer/loss/loss.h"
#include "trainer/loss/mismatch.h"
#include "trainer/loss/schedule.h"
#include "trainer/optimizer.h"
#include "trainer/packer.h"

namespace orrery::trainer {

struct PolicyTrainerOptions {
  LossOptions loss;
  AdamWOptions optimizer;
  ScheduleOptions schedule;
  // KL to the reference in the reward: a term a token, -coef * KL_t, on top of the advantage; with
  // to_go (REINFORCE++, arXiv 2501.03262) the sum of the terms from that token on. whiten: the sums
  // are whitened over the rollout's tokens, advantages then being plain scores or differences.
  KlKind reward_kl = KlKind::kNone;
  double reward_kl_coef = 0;
  bool reward_kl_to_go = false;
  bool whiten_rewards = false;
  float temperature = 1;  // of the rollout; log-probs are those of this temperature (0: of 1)
  int64_t micro_batch_tokens = 4096;
  bool share_prefix = true;
  bool recompute = false;
  int64_t loss_horizon = 0;  // seq_mean_token_sum_norm divides by it
  std::string model_folder;  // config, tokenizer and so on are copied from here into checkpoints
};

class PolicyTrainer : public Trainer {
 public:
  // store: loaded and committed; borrowed. reference: frozen weights, or null.
  static absl::StatusOr<std::unique_ptr<PolicyTrainer>> Create(
      model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
      const PolicyTrainerOptions& options);

  absl::StatusOr<TrainStats> Train(std::vector<TrainingBatch> batches) override;
  absl::StatusOr<TrainStats> Measure(const TrainingBatch& batch) override;
  absl::Status ScoreReference(TrainingBatch* batch) override;
  absl::Status Save(const std::string& folder) override;
  absl::Status Load(const std::string& folder) override;
  PolicyVersion version() const override { return store_.version(); }
  int64_t optimizer_steps() const override { return optimizer_.steps(); }

  // Log-probs of every trained token under the store's weights now, 0 elsewhere; for tests and
  // replay.
  absl::StatusOr<std::vector<std::vector<float>>> Score(
      std::span<const TrainingSequence> sequences) const;
  // The gradient of one batch, added up, without a step; for tests.
  absl::StatusOr<std::vector<float>> Gradient(const TrainingBatch& batch);

 private:
  struct Sums {
    LossSums loss;
    MismatchSums mismatch;
    double reference_kl = 0;  // where the reward has it
    int64_t tokens = 0;
    int64_t micro_batches = 0;
  };
  using PerToken = std::vector<std::vector<float>>;  // by sequence, by position

  PolicyTrainer(model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
                std::unique_ptr<PolicyLoss> loss, const PolicyTrainerOptions& options);

  absl::StatusOr<PerToken> ScoreWith(const model::WeightStore& weights,
                                     std::span<const TrainingSequence> sequences,
                                     PerToken* entropies = nullptr) const;
  // Adds the KL of the reward to the advantages; returns the sum of the estimates.
  double AddRewardKl(const std::vector<PerToken>& old, std::vector<TrainingBatch>* batches) const;
  // What batch_normalize divides by: the mean weight of the batch.
  double MeanCorrectionWeight(const TrainingBatch& batch, const PerToken& old) const;
  TrainStats ToStats(const Sums& sums, size_t optimizer_steps) const;
  // Forward and backward of a batch into grads_; old: log-probs at the sampling weights, empty
  // where these are the weights.
  absl::StatusOr<Sums> ForwardBackward(const TrainingBatch& batch, const PerToken& old);
  absl::Status RunMicroBatch(const TrainingBatch& batch, const PerToken& old,
                             const LossDenominators& denominators, const MicroBatch& micro,
                             float* grads, TrainingOps* ops, Sums* sums);
  void SumGradients(const std::vector<std::vector<float>>& parts);
  absl::Status ExplainBadGradient(const TrainingBatch& batch, const PerToken& old);
  bool small_model() const;
  float inverse_temperature() const;
  std::unique_ptr<TrainingOps> TakeOps();
  void GiveBack(std::unique_ptr<TrainingOps> ops);

  model::WeightStore& store_;
  const std::unique_ptr<model::WeightStore> reference_;
  const std::unique_ptr<PolicyLoss> loss_;
  const PolicyTrainerOptions options_;
  const kernels::RopeTable rope_;
  AdamW optimizer_;
  std::vector<float> grads_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TrainingOps>> idle_ops_;  // guarded by mutex_
};

}  // namespace orrery::trainer

// The trainer on one rank: packs, has the executor run the model forward and backward, evaluates
// the loss in between, and steps. The new weights lie where the rollout engine reads them.
//
// One thread calls. Nobody may sample while Train or Load runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "orchestrator/interfaces.h"
#include "trainer/executor.h"
#include "trainer/loss/kl.h"
#include "trainer/loss/loss.h"
#include "trainer/loss/mismatch.h"
#include "trainer/loss/schedule.h"
#include "trainer/packer.h"

namespace orrery::trainer {

struct PolicyTrainerOptions : ExecutorOptions {
  LossOptions loss;
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
  // Routing replay (R3): policy forwards, of old and of new log-probs, take the experts that the
  // sampler recorded and weigh them by their own router; the gradient goes through these weights
  // alone. The reference routes by itself: its log-probs are those of another model.
  bool replay_routing = false;
  int64_t loss_horizon = 0;  // seq_mean_token_sum_norm divides by it
  std::string model_folder;  // config, tokenizer and so on are copied from here into checkpoints
};

class PolicyTrainer : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<PolicyTrainer>> Create(std::unique_ptr<Executor> executor,
                                                               const PolicyTrainerOptions& options);

  absl::StatusOr<TrainStats> Train(std::vector<TrainingBatch> batches) override;
  absl::StatusOr<TrainStats> Measure(const TrainingBatch& batch) override;
  absl::Status ScoreReference(TrainingBatch* batch) override;
  absl::Status Save(const std::string& folder) override;
  absl::Status Load(const std::string& folder) override;
  PolicyVersion version() const override { return executor_->version(); }
  int64_t optimizer_steps() const override { return executor_->optimizer_steps(); }

  // Log-probs of every trained token under the weights now, 0 elsewhere; for tests and replay.
  absl::StatusOr<std::vector<std::vector<float>>> Score(
      std::span<const TrainingSequence> sequences) const;
  // The gradient of one batch, added up, without a step; for tests.
  absl::StatusOr<std::vector<float>> Gradient(const TrainingBatch& batch);

 private:
  // Routing replay: of (row, layer with experts), those whose own top k is another set.
  struct RoutingSums {
    int64_t differing = 0, routed = 0;
  };
  struct Sums {
    LossSums loss;
    MismatchSums mismatch;
    double reference_kl = 0;  // where the reward has it
    RoutingSums routing;
    MismatchSums first_mismatch, own_routing;  // of the first micro-batch, replayed and not
    int64_t tokens = 0;
    int64_t micro_batches = 0;
  };
  using PerToken = std::vector<std::vector<float>>;  // by sequence, by position

  PolicyTrainer(std::unique_ptr<Executor> executor, std::unique_ptr<PolicyLoss> loss,
                const PolicyTrainerOptions& options);

  absl::StatusOr<PerToken> ScoreWith(WeightsOf weights, std::span<const TrainingSequence> sequences,
                                     PerToken* entropies = nullptr,
                                     RoutingSums* routing = nullptr) const;
  std::vector<MicroBatch> PackAll(std::span<const TrainingSequence> sequences, bool replay) const;
  // Ok where every sequence has what replay needs.
  absl::Status CheckRouting(std::span<const TrainingSequence> sequences) const;
  // The train-rollout difference of the first micro-batch without replay.
  absl::StatusOr<MismatchSums> OwnRoutingMismatch(
      std::span<const TrainingSequence> sequences) const;
  // Adds the KL of the reward to the advantages; returns the sum of the estimates.
  double AddRewardKl(const std::vector<PerToken>& old, std::vector<TrainingBatch>* batches) const;
  // What batch_normalize divides by: the mean weight of the batch.
  double MeanCorrectionWeight(const TrainingBatch& batch, const PerToken& old) const;
  TrainStats ToStats(const Sums& sums, size_t optimizer_steps) const;
  // Forward and backward of a batch; old: log-probs at the sampling weights, empty where these are
  // the weights.
  absl::StatusOr<Sums> ForwardBackward(const TrainingBatch& batch, const PerToken& old);
  // The loss of one micro-batch, and its gradient by log-probs and entropies.
  absl::Status EvaluateLoss(const TrainingBatch& batch, const PerToken& old,
                            const LossDenominators& denominators, const MicroBatch& micro,
                            const TokenScores& scores, std::span<float> dlogps,
                            std::span<float> dentropies, Sums* sums) const;
  absl::Status ExplainBadGradient(const TrainingBatch& batch, const PerToken& old);

  const std::unique_ptr<Executor> executor_;
  const std::unique_ptr<PolicyLoss> loss_;
  const PolicyTrainerOptions options_;
};

}  // namespace orrery::trainer

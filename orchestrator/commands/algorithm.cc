#include "orchestrator/commands/algorithm.h"

#include <utility>
#include <vector>

#include "orchestrator/base/status.h"
#include "orchestrator/commands/gpu.h"

namespace orrery::commands {
namespace {

std::string NameOf(trainer::Aggregation aggregation) {
  switch (aggregation) {
    case trainer::Aggregation::kTokenMean:
      return "token_mean";
    case trainer::Aggregation::kSeqMeanTokenMean:
      return "seq_mean_token_mean";
    case trainer::Aggregation::kSeqMeanTokenSum:
      return "seq_mean_token_sum";
    case trainer::Aggregation::kSeqMeanTokenSumNorm:
      return "seq_mean_token_sum_norm";
    case trainer::Aggregation::kTokenSum:
      return "token_sum";
  }
  return {};
}

absl::Status SetMis(const configs::AlgorithmConfig& config, trainer::CorrectionOptions* mis) {
  ASSIGN_OR_RETURN(mis->level, trainer::ParseCorrectionLevel(config.correction_level));
  ASSIGN_OR_RETURN(mis->mode, trainer::ParseCorrectionMode(config.correction_mode));
  mis->reject = config.correction_reject != "none";
  if (mis->reject) {
    ASSIGN_OR_RETURN(mis->reject_level, trainer::ParseCorrectionLevel(config.correction_reject));
  }
  mis->reject_low = config.correction_reject_low;
  mis->reject_high = config.correction_reject_high;
  mis->veto_threshold = config.correction_veto;
  mis->batch_normalize = config.correction_normalize;
  return absl::OkStatus();
}

bool KlInReward(const configs::AlgorithmConfig& config) {
  return config.kl != "none" && config.kl_in == "reward";
}

// Where the batch's whitening comes last, the KL of the reward comes before it.
bool WhitenedByTrainer(const configs::AlgorithmConfig& config) {
  const bool whitened = config.whiten_advantages || config.name == "reinforce_plus_plus" ||
                        config.name == "reinforce_plus_plus_baseline";
  return whitened && KlInReward(config);
}

}  // namespace

absl::StatusOr<trainer::LossOptions> ToLoss(const configs::AlgorithmConfig& config) {
  ASSIGN_OR_RETURN(const trainer::Algorithm algorithm, trainer::ParseAlgorithm(config.name));
  trainer::LossOptions loss = trainer::PublishedOptions(algorithm);
  loss.clip_low = config.clip_low.value_or(loss.clip_low);
  loss.clip_high = config.clip_high.value_or(loss.clip_high);
  loss.dual_clip_c = config.dual_clip;
  if (config.aggregation != "auto") {
    ASSIGN_OR_RETURN(loss.aggregation, trainer::ParseAggregation(config.aggregation));
  }
  if (config.kl_in == "loss") {
    ASSIGN_OR_RETURN(loss.kl, trainer::ParseKlKind(config.kl));
    loss.kl_coef = config.kl_coefficient;
    loss.unbiased_kl = config.kl_unbiased;
  }
  loss.entropy_coef = config.entropy_coefficient;
  loss.opsm_delta = config.opsm_delta;
  ASSIGN_OR_RETURN(loss.correction.kind, trainer::ParseCorrectionKind(config.correction));
  if (config.correction != "none") {
    loss.correction.low = config.correction_low;
    loss.correction.high = config.correction_high;
  }
  if (config.correction == "mis") RETURN_IF_ERROR(SetMis(config, &loss.correction));
  return loss;
}

absl::StatusOr<rewards::AdvantageOptions> ToAdvantages(const configs::AlgorithmConfig& config) {
  rewards::AdvantageOptions options;
  ASSIGN_OR_RETURN(options.estimator, rewards::ParseEstimator(config.name));
  options.divide_by_std = config.divide_by_std;
  options.whiten_batch = config.whiten_advantages;
  options.leave_whitening = WhitenedByTrainer(config);
  return options;
}

absl::Status SetPolicyOptions(const configs::Experiment& e,
                              trainer::PolicyTrainerOptions* options) {
  ASSIGN_OR_RETURN(options->loss, ToLoss(e.algorithm));
  options->temperature = static_cast<float>(e.sampling.temperature);
  options->loss_horizon = e.Horizon();
  if (!KlInReward(e.algorithm)) return absl::OkStatus();
  ASSIGN_OR_RETURN(options->reward_kl, trainer::ParseKlKind(e.algorithm.kl));
  options->reward_kl_coef = e.algorithm.kl_coefficient;
  options->reward_kl_to_go = e.algorithm.name == "reinforce_plus_plus";
  options->whiten_rewards = WhitenedByTrainer(e.algorithm);
  return absl::OkStatus();
}

absl::StatusOr<ResolvedExperiment> ResolveAuto(const configs::Experiment& experiment) {
  ResolvedExperiment resolved{experiment, {}};
  configs::AlgorithmConfig& algorithm = resolved.experiment.algorithm;
  ASSIGN_OR_RETURN(const trainer::LossOptions loss, ToLoss(algorithm));
  const auto note = [&](std::string_view key, const std::string& value) {
    if (!resolved.what.empty()) resolved.what += ", ";
    resolved.what += fmt::format("algorithm.{} {}", key, value);
  };
  if (algorithm.aggregation == "auto") {
    algorithm.aggregation = NameOf(loss.aggregation);
    note("aggregation", algorithm.aggregation);
  }
  if (!algorithm.clip_low) {
    algorithm.clip_low = loss.clip_low;
    note("clip_low", fmt::format("{}", loss.clip_low));
  }
  if (!algorithm.clip_high) {
    algorithm.clip_high = loss.clip_high;
    note("clip_high", fmt::format("{}", loss.clip_high));
  }
  if (!resolved.what.empty()) {
    resolved.what = fmt::format("auto, by {}: {}", algorithm.name, resolved.what);
  }
  if (resolved.experiment.run.device == "auto") {
    ResolveDevice(&resolved.experiment);
    if (!resolved.what.empty()) resolved.what += "; ";
    resolved.what +=
        fmt::format("auto, by this machine: run.device {}", resolved.experiment.run.device);
  }
  return resolved;
}

}  // namespace orrery::commands

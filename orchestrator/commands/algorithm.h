// The algorithm section of an experiment as the options of loss, advantages and trainer.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "rewards/advantage.h"
#include "trainer/loss/options.h"
#include "trainer/policy_trainer.h"

namespace orrery::commands {

// The experiment with every "auto" of its algorithm replaced by what the algorithm was published
// with (trainer::PublishedOptions), and a line that says so; the line is empty where nothing was
// auto.
struct ResolvedExperiment {
  configs::Experiment experiment;
  std::string what;
};
absl::StatusOr<ResolvedExperiment> ResolveAuto(const configs::Experiment& experiment);

absl::StatusOr<trainer::LossOptions> ToLoss(const configs::AlgorithmConfig& config);
absl::StatusOr<rewards::AdvantageOptions> ToAdvantages(const configs::AlgorithmConfig& config);
// Fills loss, temperature, horizon and the KL of the reward.
absl::Status SetPolicyOptions(const configs::Experiment& experiment,
                              trainer::PolicyTrainerOptions* options);

}  // namespace orrery::commands

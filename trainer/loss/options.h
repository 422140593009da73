// What can be set of a policy loss: a plain value, copied into the loss when it is made. Names are
// those of the YAML.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/loss/aggregation.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/kl.h"

namespace orrery::trainer {

// The first five share one surrogate (clip.h): they differ in advantages, which are not made here,
// and in aggregation.
enum class Algorithm : uint8_t {
  kGrpo,
  kDrGrpo,
  kDapo,
  kRloo,
  kReinforcePlusPlus,
  kGspo,
  kCispo,
  kReinforce,  // no ratio; also supervised training
};

struct LossOptions {
  Algorithm algorithm = Algorithm::kGrpo;
  double clip_low = 0.2;
  double clip_high = 0.28;
  double dual_clip_c = 0;  // 0: off
  KlKind kl = KlKind::kNone;
  double kl_coef = 0;        // of the KL in the loss
  bool unbiased_kl = false;  // times new / old
  double entropy_coef = 0;   // the loss is minus this times the entropy
  Aggregation aggregation = Aggregation::kSeqMeanTokenMean;
  CorrectionOptions correction;
  double opsm_delta = 0;  // 0: off

  // What the options make of the optional arrays of SequenceView.
  bool uses_reference() const { return kl != KlKind::kNone; }
  bool uses_rollout() const { return correction.kind != CorrectionKind::kNone; }
  bool uses_old() const {
    return algorithm != Algorithm::kReinforce || uses_rollout() || opsm_delta > 0 || unbiased_kl;
  }
};

// grpo, dr_grpo, dapo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline (the loss is the
// same), gspo, cispo, reinforce.
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name);
// token_mean, seq_mean_token_mean, seq_mean_token_sum, seq_mean_token_sum_norm, token_sum.
absl::StatusOr<Aggregation> ParseAggregation(std::string_view name);
// none, k1, k2, k3, low_var_kl.
absl::StatusOr<KlKind> ParseKlKind(std::string_view name);
// none, tis, icepop, mis.
absl::StatusOr<CorrectionKind> ParseCorrectionKind(std::string_view name);
// token, sequence, geometric.
absl::StatusOr<CorrectionLevel> ParseCorrectionLevel(std::string_view name);
// truncate, clip, mask.
absl::StatusOr<CorrectionMode> ParseCorrectionMode(std::string_view name);

// The options with the aggregation and clip range that the algorithm was published with; "auto" in
// the YAML. grpo, gspo: seq_mean_token_mean; dr_grpo: seq_mean_token_sum_norm; all others:
// token_mean. gspo clips to 3e-4, 4e-4; cispo has no lower bound; dapo, cispo: high 0.28; the rest
// 0.2, 0.2.
LossOptions PublishedOptions(Algorithm algorithm);

// Says which value cannot be used, and why.
absl::Status CheckLossOptions(const LossOptions& options);

}  // namespace orrery::trainer

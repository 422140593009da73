#include "trainer/loss/options.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

template <typename T>
using Names = std::vector<std::pair<std::string_view, T>>;

template <typename T>
absl::StatusOr<T> Parse(std::string_view what, std::string_view name, const Names<T>& names) {
  std::string known;
  for (const auto& [candidate, value] : names) {
    if (candidate == name) return value;
    if (!known.empty()) known += ", ";
    known += candidate;
  }
  return InvalidInput("{} '{}' is unknown; use one of {}", what, name, known);
}

absl::Status AtLeastZero(std::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidInput("{} is {}; give a number of at least 0", name, value);
}

absl::Status InOrder(std::string_view what, double low, double high) {
  if (std::isfinite(low) && std::isfinite(high) && 0 <= low && low < high) {
    return absl::OkStatus();
  }
  return InvalidInput("{} are {} and {}; give two numbers of at least 0, the first the smaller",
                      what, low, high);
}

absl::Status CheckClip(const LossOptions& options) {
  RETURN_IF_ERROR(AtLeastZero("clip_low", options.clip_low));
  RETURN_IF_ERROR(AtLeastZero("clip_high", options.clip_high));
  RETURN_IF_ERROR(AtLeastZero("dual_clip", options.dual_clip_c));
  if (options.dual_clip_c > 0 && options.dual_clip_c <= 1) {
    return InvalidInput("dual_clip is {}; it bounds the ratio from above and must be more than 1",
                        options.dual_clip_c);
  }
  if (options.dual_clip_c > 0 &&
      (options.algorithm == Algorithm::kCispo || options.algorithm == Algorithm::kReinforce)) {
    return InvalidInput(
        "dual_clip is {}, but cispo and reinforce have no surrogate that it could bound; set it to "
        "0",
        options.dual_clip_c);
  }
  return absl::OkStatus();
}

absl::Status CheckKl(const LossOptions& options) {
  RETURN_IF_ERROR(AtLeastZero("kl_coefficient", options.kl_coef));
  if (options.kl == KlKind::kNone && (options.kl_coef > 0 || options.unbiased_kl)) {
    return InvalidInput(
        "kl is none, but kl_coefficient is {} and unbiased_kl {}; choose an estimator (k1, k2, k3, "
        "low_var_kl) or leave them out",
        options.kl_coef, options.unbiased_kl);
  }
  return absl::OkStatus();
}

absl::Status CheckCorrection(const CorrectionOptions& options) {
  if (options.kind == CorrectionKind::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(InOrder("correction_low and correction_high", options.low, options.high));
  if (options.kind != CorrectionKind::kMis) {
    if (options.reject || options.veto_threshold > 0 || options.batch_normalize) {
      return InvalidInput("rejection, veto and batch normalisation need correction mis");
    }
    return absl::OkStatus();
  }
  if (options.reject) {
    RETURN_IF_ERROR(InOrder("reject_low and reject_high", options.reject_low, options.reject_high));
  }
  RETURN_IF_ERROR(AtLeastZero("veto_threshold", options.veto_threshold));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name) {
  return Parse<Algorithm>("algorithm", name,
                          {{"grpo", Algorithm::kGrpo},
                           {"dr_grpo", Algorithm::kDrGrpo},
                           {"dapo", Algorithm::kDapo},
                           {"rloo", Algorithm::kRloo},
                           {"reinforce_plus_plus", Algorithm::kReinforcePlusPlus},
                           {"reinforce_plus_plus_baseline", Algorithm::kReinforcePlusPlus},
                           {"gspo", Algorithm::kGspo},
                           {"cispo", Algorithm::kCispo},
                           {"reinforce", Algorithm::kReinforce}});
}

absl::StatusOr<Aggregation> ParseAggregation(std::string_view name) {
  return Parse<Aggregation>("aggregation", name,
                            {{"token_mean", Aggregation::kTokenMean},
                             {"seq_mean_token_mean", Aggregation::kSeqMeanTokenMean},
                             {"seq_mean_token_sum", Aggregation::kSeqMeanTokenSum},
                             {"seq_mean_token_sum_norm", Aggregation::kSeqMeanTokenSumNorm},
                             {"token_sum", Aggregation::kTokenSum}});
}

absl::StatusOr<KlKind> ParseKlKind(std::string_view name) {
  return Parse<KlKind>("kl", name,
                       {{"none", KlKind::kNone},
                        {"k1", KlKind::kK1},
                        {"k2", KlKind::kK2},
                        {"k3", KlKind::kK3},
                        {"low_var_kl", KlKind::kLowVar}});
}

absl::StatusOr<CorrectionKind> ParseCorrectionKind(std::string_view name) {
  return Parse<CorrectionKind>("correction", name,
                               {{"none", CorrectionKind::kNone},
                                {"tis", CorrectionKind::kTis},
                                {"icepop", CorrectionKind::kIcePop},
                                {"mis", CorrectionKind::kMis}});
}

absl::StatusOr<CorrectionLevel> ParseCorrectionLevel(std::string_view name) {
  return Parse<CorrectionLevel>("correction level", name,
                                {{"token", CorrectionLevel::kToken},
                                 {"sequence", CorrectionLevel::kSequence},
                                 {"geometric", CorrectionLevel::kGeometric}});
}

absl::StatusOr<CorrectionMode> ParseCorrectionMode(std::string_view name) {
  return Parse<CorrectionMode>("correction mode", name,
                               {{"truncate", CorrectionMode::kTruncate},
                                {"clip", CorrectionMode::kClip},
                                {"mask", CorrectionMode::kMask}});
}

LossOptions PublishedOptions(Algorithm algorithm) {
  LossOptions options;
  options.algorithm = algorithm;
  options.aggregation = Aggregation::kTokenMean;
  options.clip_low = options.clip_high = 0.2;
  switch (algorithm) {
    case Algorithm::kGrpo:
      options.aggregation = Aggregation::kSeqMeanTokenMean;
      return options;
    case Algorithm::kDrGrpo:
      options.aggregation = Aggregation::kSeqMeanTokenSumNorm;
      return options;
    case Algorithm::kDapo:
      options.clip_high = 0.28;
      return options;
    case Algorithm::kGspo:
      options.aggregation = Aggregation::kSeqMeanTokenMean;
      options.clip_low = 3e-4;
      options.clip_high = 4e-4;
      return options;
    case Algorithm::kCispo:
      options.clip_low = 1;
      options.clip_high = 0.28;
      return options;
    case Algorithm::kRloo:
    case Algorithm::kReinforcePlusPlus:
    case Algorithm::kReinforce:
      return options;
  }
  CHECK(false) << "algorithm " << static_cast<int>(algorithm);
  return options;
}

absl::Status CheckLossOptions(const LossOptions& options) {
  RETURN_IF_ERROR(CheckClip(options));
  RETURN_IF_ERROR(CheckKl(options));
  RETURN_IF_ERROR(CheckCorrection(options.correction));
  if (!std::isfinite(options.entropy_coef)) {
    return InvalidInput("entropy_coefficient is {}; give a number", options.entropy_coef);
  }
  return AtLeastZero("opsm_delta", options.opsm_delta);
}

}  // namespace orrery::trainer

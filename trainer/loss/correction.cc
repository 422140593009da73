#include "trainer/loss/correction.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/base/check.h"
#include "trainer/loss/surrogate.h"

namespace orrery::trainer {
namespace {

constexpr double kSmallestMean = 1e-8;

struct Bounded {
  double weight = 1;
  bool changed = false;  // outside the bounds
  bool keep = true;
};

// e^d per token, d at the level; 1 where the mask is 0.
std::vector<double> Ratios(CorrectionLevel level, std::span<const float> old_logp,
                           std::span<const float> rollout_logp, std::span<const uint8_t> mask) {
  std::vector<double> ratios(mask.size(), 1.0);
  const auto is_trained = [](uint8_t m) { return m != 0; };
  const auto count = static_cast<double>(std::count_if(mask.begin(), mask.end(), is_trained));
  double of_sequence = 0;
  if (level != CorrectionLevel::kToken) {
    of_sequence = MaskedMeanDifference(old_logp, rollout_logp, mask);
    if (level == CorrectionLevel::kSequence) of_sequence *= count;
  }
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    const double d = level == CorrectionLevel::kToken
                         ? static_cast<double>(old_logp[t]) - static_cast<double>(rollout_logp[t])
                         : of_sequence;
    ratios[t] = std::exp(ClampLogRatio(d));
  }
  return ratios;
}

Bounded BoundMis(CorrectionMode mode, double ratio, double low, double high) {
  switch (mode) {
    case CorrectionMode::kTruncate:
      return {std::min(ratio, high), ratio > high, true};
    case CorrectionMode::kClip:
      return {std::clamp(ratio, low, high), ratio < low || ratio > high, true};
    case CorrectionMode::kMask:
      return {ratio, ratio < low || ratio > high, ratio >= low && ratio <= high};
  }
  CHECK(false) << "correction mode " << static_cast<int>(mode);
  return {};
}

Bounded Bound(const CorrectionOptions& options, double ratio) {
  const bool inside = ratio >= options.low && ratio <= options.high;
  switch (options.kind) {
    case CorrectionKind::kNone:
      return {};
    case CorrectionKind::kTis:
      return {std::clamp(ratio, options.low, options.high), !inside, true};
    case CorrectionKind::kIcePop:
      return {inside ? ratio : 0, !inside, true};
    case CorrectionKind::kMis:
      return BoundMis(options.mode, ratio, options.low, options.high);
  }
  CHECK(false) << "correction kind " << static_cast<int>(options.kind);
  return {};
}

CorrectionLevel WeightLevel(const CorrectionOptions& options) {
  return options.kind == CorrectionKind::kMis ? options.level : CorrectionLevel::kToken;
}

void RejectOutside(const CorrectionOptions& options, std::span<const double> ratios,
                   std::span<uint8_t> keep) {
  for (size_t t = 0; t < keep.size(); ++t) {
    if (ratios[t] < options.reject_low || ratios[t] > options.reject_high) keep[t] = 0;
  }
}

bool IsVetoed(double threshold, std::span<const float> old_logp,
              std::span<const float> rollout_logp, std::span<const uint8_t> mask) {
  if (threshold <= 0) return false;
  const double lowest = std::log(threshold);
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    if (static_cast<double>(old_logp[t]) - static_cast<double>(rollout_logp[t]) < lowest) {
      return true;
    }
  }
  return false;
}

void RejectMis(const CorrectionOptions& options, std::span<const float> old_logp,
               std::span<const float> rollout_logp, std::span<const uint8_t> mask,
               CorrectedTokens* tokens, CorrectionSums* sums) {
  if (options.reject) {
    RejectOutside(options, Ratios(options.reject_level, old_logp, rollout_logp, mask),
                  tokens->keep);
  }
  if (IsVetoed(options.veto_threshold, old_logp, rollout_logp, mask)) {
    ++sums->num_vetoed_sequences;
    std::fill(tokens->keep.begin(), tokens->keep.end(), uint8_t{0});
  }
}

}  // namespace

CorrectionSums& CorrectionSums::operator+=(const CorrectionSums& other) {
  weight_sum += other.weight_sum;
  abs_sum += other.abs_sum;
  num_bounded += other.num_bounded;
  num_rejected += other.num_rejected;
  num_vetoed_sequences += other.num_vetoed_sequences;
  return *this;
}

CorrectedTokens Correct(const CorrectionOptions& options, std::span<const float> old_logp,
                        std::span<const float> rollout_logp, std::span<const uint8_t> mask,
                        CorrectionSums* sums) {
  CorrectedTokens tokens{std::vector<double>(mask.size(), 1.0),
                         std::vector<uint8_t>(mask.size(), 1)};
  if (options.kind == CorrectionKind::kNone) return tokens;
  CHECK_EQ(old_logp.size(), mask.size());
  CHECK_EQ(rollout_logp.size(), mask.size());
  const std::vector<double> ratios = Ratios(WeightLevel(options), old_logp, rollout_logp, mask);
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    const Bounded bounded = Bound(options, ratios[t]);
    tokens.weight[t] = bounded.weight;
    tokens.keep[t] = bounded.keep;
    sums->weight_sum += ratios[t];
    sums->abs_sum += std::abs(ratios[t] - 1);
    sums->num_bounded += bounded.changed;
  }
  if (options.kind == CorrectionKind::kMis) {
    RejectMis(options, old_logp, rollout_logp, mask, &tokens, sums);
  }
  for (size_t t = 0; t < mask.size(); ++t) sums->num_rejected += mask[t] && !tokens.keep[t];
  return tokens;
}

CorrectionMean& CorrectionMean::operator+=(const CorrectionMean& other) {
  sum += other.sum;
  count += other.count;
  return *this;
}

double CorrectionMean::mean() const {
  if (count == 0) return 1;
  const double mean = sum / static_cast<double>(count);
  return mean > kSmallestMean ? mean : 1;
}

CorrectionMean BatchWeight(const CorrectionOptions& options, std::span<const float> old_logp,
                           std::span<const float> rollout_logp, std::span<const uint8_t> mask) {
  CorrectionSums ignored;
  const CorrectedTokens tokens = Correct(options, old_logp, rollout_logp, mask, &ignored);
  CorrectionMean mean;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    mean.sum += tokens.weight[t];
    ++mean.count;
    if (WeightLevel(options) != CorrectionLevel::kToken) break;  // one weight a sequence
  }
  return mean;
}

}  // namespace orrery::trainer

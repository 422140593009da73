// Corrections of the train-rollout mismatch: weights, held constant, that multiply the policy
// terms. d_t = old_logp - rollout_logp: the trainer at the sampling weights against the sampler.
// (Where old is taken from the sampler, d is 0 and nothing is corrected.)
//
//   tis      w = clip(e^d, low, high), a token each               miles default low 0, high 2
//   icepop   w = e^d inside [low, high], else 0
//   mis      level     token: d_t    sequence: sum of d    geometric: mean of d
//            mode      truncate: min(w, high)   clip: clip(w, low, high)
//                      mask: w stays, tokens outside [low, high] are rejected
//            reject    besides, tokens outside [reject_low, reject_high] at reject_level
//            veto      one token with e^d < veto_threshold rejects its whole sequence
//            batch_normalize   w / (mean w of the batch)
//
// A rejected token adds nothing to the loss (policy, KL, entropy), while denominators stay as they
// are and metrics count it. The log ratio is clamped to +-20 first. A sequence is one sample.
//
// The mean of batch_normalize is global: sum CorrectionMean over all sequences of the batch
// (weights depend on old and rollout alone, so it is known before the first forward of the step)
// and give mean() to LossDenominators::mean_correction_weight. As in miles, token level averages
// over tokens; sequence and geometric level over sequences (those with a trained token).
//
// Sources: miles loss_hub/corrections.py (tis, icepop) and
// examples/infra_features/train_infer_mismatch_helper/mis.py (mis); IcePop: Ling team, "Small leak
// can sink a great ship", 2025. Two departures from mis.py: veto does not need `reject`, and batch
// normalisation knows the geometric level.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::trainer {

enum class CorrectionKind : uint8_t { kNone, kTis, kIcePop, kMis };
enum class CorrectionLevel : uint8_t { kToken, kSequence, kGeometric };
enum class CorrectionMode : uint8_t { kTruncate, kClip, kMask };

struct CorrectionOptions {
  CorrectionKind kind = CorrectionKind::kNone;
  double low = 0;
  double high = 2;
  // What follows is read by mis only.
  CorrectionLevel level = CorrectionLevel::kToken;
  CorrectionMode mode = CorrectionMode::kTruncate;
  bool reject = false;
  CorrectionLevel reject_level = CorrectionLevel::kToken;
  double reject_low = 0.5;
  double reject_high = 2;
  double veto_threshold = 0;  // 0: off; miles 1e-4
  bool batch_normalize = false;
};

// Sums over trained tokens, before rejection and normalisation. Miles' names: tis is the mean of
// weight_sum, tis_abs of abs_sum, tis_clipfrac of num_bounded.
struct CorrectionSums {
  double weight_sum = 0;  // e^d at the level, not bounded
  double abs_sum = 0;     // |e^d - 1|
  int64_t num_bounded = 0;
  int64_t num_rejected = 0;
  int64_t num_vetoed_sequences = 0;

  CorrectionSums& operator+=(const CorrectionSums& other);
};

struct CorrectedTokens {
  std::vector<double> weight;  // 1 where the mask is 0
  std::vector<uint8_t> keep;   // 0: rejected
};

// All spans are of one length; without a correction rollout_logp and old_logp are not read.
CorrectedTokens Correct(const CorrectionOptions& options, std::span<const float> old_logp,
                        std::span<const float> rollout_logp, std::span<const uint8_t> mask,
                        CorrectionSums* sums);

struct CorrectionMean {
  double sum = 0;
  int64_t count = 0;

  CorrectionMean& operator+=(const CorrectionMean& other);
  // 1 where there is nothing to divide by, or where the mean is below 1e-8 (as miles).
  double mean() const;
};

CorrectionMean BatchWeight(const CorrectionOptions& options, std::span<const float> old_logp,
                           std::span<const float> rollout_logp, std::span<const uint8_t> mask);

}  // namespace orrery::trainer

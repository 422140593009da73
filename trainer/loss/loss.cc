#include "trainer/loss/loss.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/loss/cispo.h"
#include "trainer/loss/clip.h"
#include "trainer/loss/gspo.h"
#include "trainer/loss/opsm.h"
#include "trainer/loss/reinforce.h"

namespace orrery::trainer {
namespace {

void CheckSizes(const LossOptions& options, const SequenceView& sequence, size_t dlogp_size,
                size_t dentropy_size) {
  const size_t n = sequence.mask.size();
  const auto check_optional = [n](std::string_view name, size_t size, bool needed) {
    CHECK(size == n || (size == 0 && !needed))
        << name << " has " << size << " of " << n << " tokens";
  };
  CHECK_EQ(sequence.logp.size(), n);
  CHECK_EQ(sequence.advantages.size(), n);
  CHECK_EQ(dlogp_size, n);
  check_optional("old_logp", sequence.old_logp.size(), options.uses_old());
  check_optional("rollout_logp", sequence.rollout_logp.size(), options.uses_rollout());
  check_optional("reference_logp", sequence.reference_logp.size(), options.uses_reference());
  check_optional("entropy", sequence.entropy.size(), options.entropy_coef != 0);
  check_optional("dentropy", dentropy_size, options.entropy_coef != 0);
}

absl::Status CheckFinite(std::string_view name, std::span<const float> values,
                         std::span<const uint8_t> mask) {
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask[t] && !std::isfinite(values[t])) {
      return Failed("token {}: {} is {}", t, name, values[t]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const LossOptions& options, const SequenceView& sequence) {
  RETURN_IF_ERROR(CheckFinite("logp", sequence.logp, sequence.mask));
  RETURN_IF_ERROR(CheckFinite("old_logp", sequence.old_logp, sequence.mask));
  RETURN_IF_ERROR(CheckFinite("entropy", sequence.entropy, sequence.mask));
  RETURN_IF_ERROR(CheckFinite("advantage", sequence.advantages, sequence.mask));
  if (options.uses_rollout()) {
    RETURN_IF_ERROR(CheckFinite("rollout_logp", sequence.rollout_logp, sequence.mask));
  }
  if (options.uses_reference()) {
    RETURN_IF_ERROR(CheckFinite("reference_logp", sequence.reference_logp, sequence.mask));
  }
  return absl::OkStatus();
}

int64_t CountTrained(std::span<const uint8_t> mask) {
  return std::count_if(mask.begin(), mask.end(), [](uint8_t m) { return m != 0; });
}

void AddTermMetrics(std::span<const TokenTerm> terms, std::span<const uint8_t> mask,
                    LossSums* sums) {
  double ratios = 0;
  double squares = 0;
  for (size_t t = 0; t < terms.size(); ++t) {
    if (!mask[t]) continue;
    ratios += terms[t].ratio;
    squares += terms[t].ratio * terms[t].ratio;
    sums->ppo_kl_sum += terms[t].ppo_kl;
    sums->num_clipped += terms[t].clipped;
    sums->num_dual_clipped += terms[t].dual_clipped;
  }
  sums->ratio_sum += ratios;
  if (squares > 0) sums->effective_tokens += ratios * ratios / squares;
}

// One sequence on its way through the steps of the loss.
class Evaluation {
 public:
  Evaluation(const LossOptions& options, const SequenceView& sequence, double scale)
      : options_(options), sequence_(sequence), scale_(scale) {
    sums_.num_tokens = CountTrained(sequence.mask);
  }

  // Correction, OPSM: policy weights w and kept tokens k, both without gradient.
  void Weigh(double mean_correction_weight) {
    tokens_ = Correct(options_.correction, sequence_.old_logp, sequence_.rollout_logp,
                      sequence_.mask, &sums_.correction);
    if (options_.correction.batch_normalize) {
      CHECK_GT(mean_correction_weight, 0);
      for (double& weight : tokens_.weight) weight /= mean_correction_weight;
    }
    sums_.num_opsm_masked += ApplyOpsm(options_.opsm_delta, sequence_, tokens_.weight);
  }

  void AddPolicy(const Surrogate& surrogate, std::span<double> dlogp) {
    std::vector<TokenTerm> terms(sequence_.size());
    surrogate.Forward(sequence_, terms);
    AddTermMetrics(terms, sequence_.mask, &sums_);
    std::vector<double> weight(sequence_.size(), 0.0);
    for (size_t t = 0; t < terms.size(); ++t) {
      if (!IsKept(t)) continue;
      weight[t] = scale_ * tokens_.weight[t];
      sums_.pg_loss += weight[t] * terms[t].loss;
    }
    surrogate.Backward(sequence_, terms, weight, dlogp);
  }

  void AddEntropy(std::span<double> dentropy) {
    for (size_t t = 0; t < sequence_.entropy.size(); ++t) {
      if (!sequence_.mask[t]) continue;
      sums_.entropy_sum += sequence_.entropy[t];
      if (!IsKept(t)) continue;
      sums_.entropy_loss += scale_ * sequence_.entropy[t];
      if (!dentropy.empty()) dentropy[t] = -options_.entropy_coef * scale_;
    }
  }

  void AddKl(std::span<double> dlogp) {
    if (!options_.uses_reference()) return;
    for (size_t t = 0; t < dlogp.size(); ++t) {
      if (!sequence_.mask[t]) continue;
      const KlTerm term = Kl(t);
      sums_.kl_sum += term.value;
      if (!IsKept(t)) continue;
      sums_.kl_loss += scale_ * term.value;
      dlogp[t] += options_.kl_coef * scale_ * term.slope;
    }
  }

  absl::StatusOr<LossSums> Finish(std::span<const double> dlogp) {
    sums_.loss = sums_.pg_loss - options_.entropy_coef * sums_.entropy_loss +
                 options_.kl_coef * sums_.kl_loss;
    for (size_t t = 0; t < dlogp.size(); ++t) {
      if (!std::isfinite(dlogp[t])) {
        return Failed("token {}: d loss / d logp is {} at logp {}", t, dlogp[t], sequence_.logp[t]);
      }
    }
    if (!std::isfinite(sums_.loss)) return Failed("the loss of the sequence is {}", sums_.loss);
    return sums_;
  }

 private:
  bool IsKept(size_t t) const { return sequence_.mask[t] && tokens_.keep[t]; }

  KlTerm Kl(size_t t) const {
    if (!options_.unbiased_kl) {
      return EstimateKl(options_.kl, sequence_.logp[t], sequence_.reference_logp[t]);
    }
    return EstimateUnbiasedKl(options_.kl, sequence_.logp[t], sequence_.old_logp[t],
                              sequence_.reference_logp[t]);
  }

  const LossOptions& options_;
  const SequenceView& sequence_;
  const double scale_;
  CorrectedTokens tokens_;
  LossSums sums_;
};

std::unique_ptr<const Surrogate> MakeSurrogate(const LossOptions& options) {
  const ClipRange range{options.clip_low, options.clip_high, options.dual_clip_c};
  switch (options.algorithm) {
    case Algorithm::kGrpo:
    case Algorithm::kDrGrpo:
    case Algorithm::kDapo:
    case Algorithm::kRloo:
    case Algorithm::kReinforcePlusPlus:
      return std::make_unique<ClippedSurrogate>(range);
    case Algorithm::kGspo:
      return std::make_unique<GspoSurrogate>(range);
    case Algorithm::kCispo:
      return std::make_unique<CispoSurrogate>(range);
    case Algorithm::kReinforce:
      return std::make_unique<ReinforceSurrogate>();
  }
  CHECK(false) << "algorithm " << static_cast<int>(options.algorithm);
  return nullptr;
}

template <typename T>
std::span<T> Part(std::span<T> whole, size_t begin, size_t size) {
  return whole.empty() ? whole : whole.subspan(begin, size);
}

}  // namespace

LossSums& LossSums::operator+=(const LossSums& other) {
  loss += other.loss;
  pg_loss += other.pg_loss;
  kl_loss += other.kl_loss;
  entropy_loss += other.entropy_loss;
  entropy_sum += other.entropy_sum;
  ppo_kl_sum += other.ppo_kl_sum;
  ratio_sum += other.ratio_sum;
  kl_sum += other.kl_sum;
  effective_tokens += other.effective_tokens;
  num_tokens += other.num_tokens;
  num_clipped += other.num_clipped;
  num_dual_clipped += other.num_dual_clipped;
  num_opsm_masked += other.num_opsm_masked;
  correction += other.correction;
  return *this;
}

SequenceView PackedSequences::Sequence(size_t index) const {
  CHECK_EQ(offsets.size(), num_sequences() + 1);
  CHECK_LT(index, num_sequences());
  CHECK_LE(offsets[index], offsets[index + 1]);
  CHECK_LE(static_cast<size_t>(offsets[index + 1]), tokens.mask.size());
  const auto begin = static_cast<size_t>(offsets[index]);
  const auto size = static_cast<size_t>(offsets[index + 1]) - begin;
  return {Part(tokens.logp, begin, size),         Part(tokens.old_logp, begin, size),
          Part(tokens.rollout_logp, begin, size), Part(tokens.reference_logp, begin, size),
          Part(tokens.entropy, begin, size),      Part(tokens.advantages, begin, size),
          Part(tokens.mask, begin, size),         episode_tokens[index]};
}

absl::Status PolicyLoss::Evaluate(const SequenceView& sequence,
                                  const LossDenominators& denominators, std::span<double> dlogp,
                                  std::span<double> dentropy, LossSums* sums) const {
  CheckSizes(options_, sequence, dlogp.size(), dentropy.size());
  RETURN_IF_ERROR(CheckFinite(options_, sequence));
  std::fill(dlogp.begin(), dlogp.end(), 0.0);
  std::fill(dentropy.begin(), dentropy.end(), 0.0);
  const int64_t num_trained = CountTrained(sequence.mask);
  if (num_trained == 0) return absl::OkStatus();
  CHECK_GE(sequence.episode_tokens, num_trained);
  ASSIGN_OR_RETURN(const double scale,
                   TokenScale(options_.aggregation, denominators, sequence.episode_tokens));
  Evaluation evaluation(options_, sequence, scale);
  evaluation.Weigh(denominators.mean_correction_weight);
  evaluation.AddPolicy(*surrogate_, dlogp);
  evaluation.AddEntropy(dentropy);
  evaluation.AddKl(dlogp);
  ASSIGN_OR_RETURN(const LossSums added, evaluation.Finish(dlogp));
  *sums += added;
  return absl::OkStatus();
}

absl::Status PolicyLoss::Evaluate(const SequenceView& sequence,
                                  const LossDenominators& denominators, std::span<float> dlogp,
                                  std::span<float> dentropy, LossSums* sums) const {
  std::vector<double> logp_gradient(dlogp.size());
  std::vector<double> entropy_gradient(dentropy.size());
  RETURN_IF_ERROR(Evaluate(sequence, denominators, std::span<double>(logp_gradient),
                           std::span<double>(entropy_gradient), sums));
  const auto round = [](double x) { return static_cast<float>(x); };
  std::transform(logp_gradient.begin(), logp_gradient.end(), dlogp.begin(), round);
  std::transform(entropy_gradient.begin(), entropy_gradient.end(), dentropy.begin(), round);
  return absl::OkStatus();
}

absl::Status PolicyLoss::EvaluatePacked(const PackedSequences& pack,
                                        const LossDenominators& denominators,
                                        std::span<float> dlogp, std::span<float> dentropy,
                                        LossSums* sums) const {
  CHECK_EQ(dlogp.size(), pack.tokens.mask.size());
  CHECK_EQ(pack.offsets.size(), pack.num_sequences() + 1);
  CHECK_EQ(pack.offsets.front(), 0);
  CHECK_EQ(static_cast<size_t>(pack.offsets.back()), dlogp.size());
  LossSums added;
  for (size_t i = 0; i < pack.num_sequences(); ++i) {
    const SequenceView sequence = pack.Sequence(i);
    const auto begin = static_cast<size_t>(pack.offsets[i]);
    const absl::Status status =
        Evaluate(sequence, denominators, Part(dlogp, begin, sequence.size()),
                 Part(dentropy, begin, sequence.size()), &added);
    if (!status.ok()) return Annotate(status, fmt::format("sequence {}", i));
  }
  *sums += added;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PolicyLoss>> MakePolicyLoss(const LossOptions& options) {
  RETURN_IF_ERROR(CheckLossOptions(options));
  return std::make_unique<PolicyLoss>(options, MakeSurrogate(options));
}

}  // namespace orrery::trainer

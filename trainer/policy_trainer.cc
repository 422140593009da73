#include "trainer/policy_trainer.h"

#include <rapidjson/document.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

// What a checkpoint folder takes over from the model it started from.
constexpr const char* kModelFiles[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "added_tokens.json"};

// config.json that says what the weights beside it are.
std::string WithDtype(const std::string& config, kernels::DType dtype) {
  rapidjson::Document json;
  json.Parse(config.c_str());
  if (json.HasParseError() || !json.IsObject()) return config;  // ModelSpec read it: cannot happen
  json.RemoveMember("torch_dtype");
  json.RemoveMember("dtype");
  json.AddMember("dtype",
                 rapidjson::StringRef(dtype == kernels::DType::kBFloat16 ? "bfloat16" : "float32"),
                 json.GetAllocator());
  rapidjson::StringBuffer text;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> writer(text);
  writer.SetIndent(' ', 2);
  json.Accept(writer);
  return std::string(text.GetString(), text.GetSize()) + "\n";
}

absl::Status NameSequence(const absl::Status& status, const TrainingSequence& sequence) {
  return Annotate(status,
                  fmt::format("episode {} of group {}", sequence.episode_id, sequence.group_id));
}

// As rewards/advantage.h whitens: (x - mean) / sqrt(variance + 1e-8), the variance unbiased; 0
// where there is nothing to compare.
void Whiten(const std::vector<float*>& values) {
  constexpr double kEpsilon = 1e-8;
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const float* value : values) sum += *value;
  const double mean = values.empty() ? 0 : sum / n;
  for (const float* value : values) squares += (*value - mean) * (*value - mean);
  const double scale = n < 2 || squares == 0 ? 0 : 1 / std::sqrt(squares / (n - 1) + kEpsilon);
  for (float* value : values) *value = static_cast<float>((*value - mean) * scale);
}

// Routings of a micro-batch that are replayed.
int64_t NumRouted(const MicroBatch& micro) {
  return static_cast<int64_t>(micro.routed_rows.size()) * micro.routed_layers;
}

int64_t LargestId(std::span<const uint8_t> ids, int32_t id_bytes) {
  int64_t largest = -1;
  for (size_t i = 0; i + id_bytes <= ids.size(); i += id_bytes) {
    largest = std::max<int64_t>(largest, id_bytes == 1 ? ids[i] : ids[i] | ids[i + 1] << 8);
  }
  return largest;
}

int64_t LargestId(const RoutedExperts& r) {
  const int64_t rest = LargestId(r.rest, r.id_bytes);
  return r.prompt == nullptr ? rest : std::max(rest, LargestId(*r.prompt, r.id_bytes));
}

double MeanKl(const MismatchSums& sums) {
  return sums.kl_sum / std::max<double>(1, static_cast<double>(sums.num_tokens));
}

// Values of one sequence's trained tokens, in order.
template <typename T>
std::vector<T> Take(const std::vector<T>& per_position, std::span<const int32_t> positions) {
  std::vector<T> out;
  out.reserve(positions.size());
  for (const int32_t p : positions) out.push_back(per_position[p]);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PolicyTrainer>> PolicyTrainer::Create(
    std::unique_ptr<Executor> executor, const PolicyTrainerOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PolicyLoss> loss, MakePolicyLoss(options.loss));
  RETURN_IF_ERROR(CheckSchedule(options.schedule));
  const bool needs_reference = options.loss.uses_reference() || options.reward_kl != KlKind::kNone;
  if (needs_reference && !executor->has_reference()) {
    return InvalidInput("a KL to the reference needs reference weights");
  }
  if (options.replay_routing && !executor->spec().has_moe()) {
    return InvalidInput(
        "trainer.routing_replay: the model has no experts, so there is no routing to replay; set "
        "none");
  }
  return std::unique_ptr<PolicyTrainer>(
      new PolicyTrainer(std::move(executor), std::move(loss), options));
}

PolicyTrainer::PolicyTrainer(std::unique_ptr<Executor> executor, std::unique_ptr<PolicyLoss> loss,
                             const PolicyTrainerOptions& options)
    : executor_(std::move(executor)), loss_(std::move(loss)), options_(options) {}

absl::StatusOr<TrainStats> PolicyTrainer::Train(std::vector<TrainingBatch> batches) {
  // With one optimizer step the policy's own forward is the one at the sampling weights. With more,
  // and where something of the whole rollout depends on them, log-probs are taken of all batches
  // before the first step.
  const bool reward_kl = options_.reward_kl != KlKind::kNone;
  std::vector<PerToken> old(batches.size());
  TrainStats stats;
  MismatchSums own_routing;
  if (options_.replay_routing) {
    for (const TrainingBatch& batch : batches) RETURN_IF_ERROR(CheckRouting(batch.sequences));
    if (!batches.empty()) {
      ASSIGN_OR_RETURN(own_routing, OwnRoutingMismatch(batches[0].sequences));
    }
  }
  RoutingSums before;  // the first step
  if (batches.size() > 1 || reward_kl || options_.loss.correction.batch_normalize) {
    for (size_t i = 0; i < batches.size(); ++i) {
      ASSIGN_OR_RETURN(old[i],
                       ScoreWith(WeightsOf::kPolicy, batches[i].sequences, nullptr, &before));
    }
  }
  Sums all;
  if (reward_kl) all.reference_kl = AddRewardKl(old, &batches);
  for (size_t i = 0; i < batches.size(); ++i) {
    const TrainingBatch& batch = batches[i];
    ASSIGN_OR_RETURN(const Sums sums, ForwardBackward(batch, old[i]));
    const double norm = executor_->GradNorm();
    if (!std::isfinite(norm)) return ExplainBadGradient(batch, old[i]);
    stats.learning_rate = LearningRate(options_.schedule, optimizer_steps());
    stats.sync_s += executor_->Step(norm, stats.learning_rate);
    stats.grad_norm += norm / static_cast<double>(batches.size());
    all.loss += sums.loss;
    all.mismatch += sums.mismatch;
    all.tokens += sums.tokens;
    all.micro_batches += sums.micro_batches;
    if (i > 0) continue;
    all.routing = sums.routing;
    all.first_mismatch = sums.first_mismatch;
  }
  if (before.routed > 0) all.routing = before;
  all.own_routing = own_routing;
  TrainStats whole = ToStats(all, batches.size());
  whole.learning_rate = stats.learning_rate;
  whole.grad_norm = stats.grad_norm;
  whole.sync_s = stats.sync_s;
  return whole;
}

TrainStats PolicyTrainer::ToStats(const Sums& all, size_t optimizer_steps) const {
  const double steps = std::max<double>(1, static_cast<double>(optimizer_steps));
  const double tokens = std::max<double>(1, static_cast<double>(all.loss.num_tokens));
  TrainStats stats;
  stats.loss = all.loss.loss / steps;
  stats.pg_loss = all.loss.pg_loss / steps;
  stats.kl_loss = all.loss.kl_loss / steps;
  stats.entropy = all.loss.entropy_sum / tokens;
  stats.ppo_kl = all.loss.ppo_kl_sum / tokens;
  stats.pg_clipfrac = static_cast<double>(all.loss.num_clipped) / tokens;
  const double compared = std::max<double>(1, static_cast<double>(all.mismatch.num_tokens));
  stats.train_rollout_kl = all.mismatch.kl_sum / compared;
  stats.train_rollout_logprob_abs_diff_mean = all.mismatch.abs_diff_sum / compared;
  stats.train_rollout_logprob_abs_diff_max = all.mismatch.abs_diff_max;
  stats.num_trained_tokens = all.loss.num_tokens;
  stats.num_processed_tokens = all.tokens;
  stats.num_micro_batches = all.micro_batches;
  if (options_.loss.uses_reference()) stats.reference_kl = all.loss.kl_sum / tokens;
  if (options_.reward_kl != KlKind::kNone) stats.reference_kl = all.reference_kl / tokens;
  if (options_.loss.uses_rollout()) {
    const CorrectionSums& c = all.loss.correction;
    stats.correction = {.ratio = c.weight_sum / tokens,
                        .ratio_abs_diff = c.abs_sum / tokens,
                        .bounded = static_cast<double>(c.num_bounded) / tokens,
                        .rejected = static_cast<double>(c.num_rejected) / tokens};
  }
  if (options_.loss.opsm_delta > 0) {
    stats.opsm_masked = static_cast<double>(all.loss.num_opsm_masked) / tokens;
  }
  if (options_.replay_routing) {
    const double routed = std::max<double>(1, static_cast<double>(all.routing.routed));
    stats.routing_replay.emplace();
    stats.routing_replay->differing = static_cast<double>(all.routing.differing) / routed;
    stats.routing_replay->own_routing_kl = MeanKl(all.own_routing);
    stats.routing_replay->replayed_kl = MeanKl(all.first_mismatch);
  }
  return stats;
}

double PolicyTrainer::AddRewardKl(const std::vector<PerToken>& old,
                                  std::vector<TrainingBatch>* batches) const {
  double sum = 0;
  std::vector<float*> trained;  // every trained token's advantage, in order
  for (size_t b = 0; b < batches->size(); ++b) {
    for (size_t i = 0; i < (*batches)[b].sequences.size(); ++i) {
      TrainingSequence& s = (*batches)[b].sequences[i];
      std::vector<double> penalty(s.token_ids.size()), to_go(s.token_ids.size());
      KlPenaltyRewards(options_.reward_kl, old[b][i], s.reference_logprobs, s.loss_mask, 1,
                       penalty);
      if (options_.reward_kl_to_go) RewardToGo(penalty, s.loss_mask, /*gamma=*/1, to_go);
      const std::vector<double>& term = options_.reward_kl_to_go ? to_go : penalty;
      for (size_t t = 0; t < s.token_ids.size(); ++t) {
        if (!s.loss_mask[t]) continue;
        sum -= penalty[t];
        s.advantages[t] += static_cast<float>(options_.reward_kl_coef * term[t]);
        trained.push_back(&s.advantages[t]);
      }
    }
  }
  if (options_.whiten_rewards) Whiten(trained);
  return sum;
}

double PolicyTrainer::MeanCorrectionWeight(const TrainingBatch& batch, const PerToken& old) const {
  if (!options_.loss.correction.batch_normalize) return 1;
  CorrectionMean mean;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const TrainingSequence& s = batch.sequences[i];
    mean += BatchWeight(options_.loss.correction, old[i], s.rollout_logprobs, s.loss_mask);
  }
  return mean.mean();
}

absl::StatusOr<TrainStats> PolicyTrainer::Measure(const TrainingBatch& batch) {
  Sums sums;
  PerToken entropies;
  size_t num_first = 0;  // sequences of the first micro-batch
  if (options_.replay_routing) {
    RETURN_IF_ERROR(CheckRouting(batch.sequences));
    ASSIGN_OR_RETURN(sums.own_routing, OwnRoutingMismatch(batch.sequences));
    num_first = PackAll(batch.sequences, true)[0].sequences.size();
  }
  ASSIGN_OR_RETURN(const PerToken logps,
                   ScoreWith(WeightsOf::kPolicy, batch.sequences, &entropies, &sums.routing));
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const TrainingSequence& s = batch.sequences[i];
    if (absl::Status status = AddMismatch(logps[i], s.rollout_logprobs, s.loss_mask,
                                          s.episode_tokens, &sums.mismatch);
        !status.ok()) {
      return NameSequence(status, s);
    }
    if (i + 1 == num_first) sums.first_mismatch = sums.mismatch;
    for (size_t t = 0; t < s.token_ids.size(); ++t) {
      if (!s.loss_mask[t]) continue;
      ++sums.loss.num_tokens;
      sums.loss.entropy_sum += entropies[i][t];
    }
  }
  TrainStats stats = ToStats(sums, 0);
  stats.num_trained_tokens = 0;
  stats.reference_kl.reset();
  stats.correction.reset();
  stats.opsm_masked.reset();
  stats.learning_rate = LearningRate(options_.schedule, optimizer_steps());
  return stats;
}

absl::StatusOr<PolicyTrainer::Sums> PolicyTrainer::ForwardBackward(const TrainingBatch& batch,
                                                                   const PerToken& old) {
  const std::vector<MicroBatch> micros = PackAll(batch.sequences, options_.replay_routing);
  const size_t n = micros.size();
  LossDenominators denominators;
  denominators.num_episodes = batch.num_episodes;
  denominators.num_trained_tokens = batch.num_trained_tokens;
  denominators.horizon = options_.loss_horizon;
  denominators.mean_correction_weight = MeanCorrectionWeight(batch, old);
  std::vector<Sums> sums(n);
  RETURN_IF_ERROR(
      executor_->ForwardBackward(micros, options_.temperature,
                                 [&](size_t i, const TokenScores& scores, std::span<float> dlogps,
                                     std::span<float> dentropies) {
                                   return EvaluateLoss(batch, old, denominators, micros[i], scores,
                                                       dlogps, dentropies, &sums[i]);
                                 }));
  Sums total;
  for (size_t i = 0; i < n; ++i) {
    total.loss += sums[i].loss;
    total.mismatch += sums[i].mismatch;
    total.routing.differing += sums[i].routing.differing;
    total.routing.routed += NumRouted(micros[i]);
    total.tokens += static_cast<int64_t>(micros[i].token_ids.size());
  }
  total.micro_batches = static_cast<int64_t>(n);
  if (n > 0) total.first_mismatch = sums[0].mismatch;
  return total;
}

absl::Status PolicyTrainer::EvaluateLoss(const TrainingBatch& batch, const PerToken& old,
                                         const LossDenominators& denominators,
                                         const MicroBatch& micro, const TokenScores& scores,
                                         std::span<float> dlogps, std::span<float> dentropies,
                                         Sums* sums) const {
  sums->routing.differing = scores.differing_routing;
  for (size_t i = 0; i < micro.sequences.size(); ++i) {
    const TrainingSequence& sequence = batch.sequences[micro.sequences[i]];
    const size_t first = micro.target_offsets[i], count = micro.target_offsets[i + 1] - first;
    const std::span<const int32_t> at(micro.target_positions.data() + first, count);
    if (scores.bad >= static_cast<int64_t>(first) &&
        scores.bad < static_cast<int64_t>(first + count)) {
      return NameSequence(Failed("logits of token {} are not finite", at[scores.bad - first]),
                          sequence);
    }
    const std::vector<float> advantages = Take(sequence.advantages, at);
    const std::vector<uint8_t> mask(count, 1);
    std::vector<float> rollout, reference, before;
    if (!sequence.rollout_logprobs.empty()) rollout = Take(sequence.rollout_logprobs, at);
    if (!sequence.reference_logprobs.empty()) reference = Take(sequence.reference_logprobs, at);
    SequenceView view;
    view.logp = scores.logprobs.subspan(first, count);
    if (!old.empty()) before = Take(old[micro.sequences[i]], at);
    view.old_logp = old.empty() ? view.logp : std::span<const float>(before);
    view.rollout_logp = rollout;
    view.reference_logp = reference;
    view.entropy = scores.entropies.subspan(first, count);
    view.advantages = advantages;
    view.mask = mask;
    view.episode_tokens = sequence.episode_tokens;
    if (!rollout.empty()) {
      if (absl::Status s =
              AddMismatch(view.old_logp, rollout, mask, sequence.episode_tokens, &sums->mismatch);
          !s.ok()) {
        return NameSequence(s, sequence);
      }
    }
    if (absl::Status s = loss_->Evaluate(view, denominators, dlogps.subspan(first, count),
                                         dentropies.subspan(first, count), &sums->loss);
        !s.ok()) {
      return NameSequence(s, sequence);
    }
  }
  return absl::OkStatus();
}

absl::Status PolicyTrainer::ExplainBadGradient(const TrainingBatch& batch, const PerToken& old) {
  // One sequence at a time: slow, but the run has stopped anyway.
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    TrainingBatch one = batch;
    one.sequences = {batch.sequences[i]};
    const PerToken one_old = old.empty() ? PerToken{} : PerToken{old[i]};
    const absl::StatusOr<Sums> sums = ForwardBackward(one, one_old);
    if (!sums.ok()) return sums.status();
    if (!std::isfinite(executor_->GradNorm())) {
      return NameSequence(Failed("its gradient is not finite"), batch.sequences[i]);
    }
  }
  return Failed(
      "the gradient of optimizer step {} is not finite, though every sequence's own is: "
      "their sum overflows float32",
      optimizer_steps());
}

absl::StatusOr<PolicyTrainer::PerToken> PolicyTrainer::ScoreWith(
    WeightsOf weights, std::span<const TrainingSequence> sequences, PerToken* all_entropies,
    RoutingSums* routing) const {
  const bool replay = options_.replay_routing && weights == WeightsOf::kPolicy;
  const std::vector<MicroBatch> micros = PackAll(sequences, replay);
  std::vector<int64_t> differing(micros.size());
  PerToken out(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) out[i].assign(sequences[i].token_ids.size(), 0.0f);
  if (all_entropies != nullptr) *all_entropies = out;
  const auto store = [&](size_t m, const TokenScores& scores) -> absl::Status {
    const MicroBatch& micro = micros[m];
    differing[m] = scores.differing_routing;
    for (size_t i = 0; i < micro.sequences.size(); ++i) {
      const size_t sequence = micro.sequences[i];
      for (size_t t = micro.target_offsets[i]; t < micro.target_offsets[i + 1]; ++t) {
        const int32_t at = micro.target_positions[t];
        if (static_cast<int64_t>(t) == scores.bad) {
          return NameSequence(Failed("logits of token {} are not finite", at), sequences[sequence]);
        }
        out[sequence][at] = scores.logprobs[t];
        if (all_entropies != nullptr) (*all_entropies)[sequence][at] = scores.entropies[t];
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(executor_->Score(weights, micros, options_.temperature, store));
  for (size_t m = 0; m < micros.size() && routing != nullptr; ++m) {
    routing->differing += differing[m];
    routing->routed += NumRouted(micros[m]);
  }
  return out;
}

std::vector<MicroBatch> PolicyTrainer::PackAll(std::span<const TrainingSequence> sequences,
                                               bool replay) const {
  return Pack(sequences, options_.micro_batch_tokens, options_.share_prefix, replay);
}

absl::Status PolicyTrainer::CheckRouting(std::span<const TrainingSequence> sequences) const {
  const model::ModelSpec& spec = executor_->spec();
  for (const TrainingSequence& s : sequences) {
    if (s.routed_experts == nullptr) {
      return NameSequence(
          InvalidInput("it has no routed experts to replay (trainer.routing_replay): they are "
                       "recorded while sampling"),
          s);
    }
    const RoutedExperts& r = *s.routed_experts;
    if (r.num_layers != spec.num_moe_layers() || r.top_k != spec.experts_per_token ||
        r.id_bytes != spec.expert_id_bytes()) {
      return NameSequence(
          InvalidInput("its routed experts are of {} layers, top {}, {} bytes an id; the model "
                       "has {} layers with experts, top {}, {} bytes",
                       r.num_layers, r.top_k, r.id_bytes, spec.num_moe_layers(),
                       spec.experts_per_token, spec.expert_id_bytes()),
          s);
    }
    const auto needed = static_cast<int64_t>(s.token_ids.size()) - 1;
    if (r.num_positions() < needed || r.prompt_bytes() % r.token_bytes() != 0) {
      return NameSequence(InvalidInput("it has routed experts of {} tokens and needs those of {}",
                                       r.num_positions(), needed),
                          s);
    }
    const int64_t largest = LargestId(r);
    if (largest >= spec.num_experts) {
      return NameSequence(
          InvalidInput("it was routed to expert {}, of {}", largest, spec.num_experts), s);
    }
  }
  return absl::OkStatus();
}

// One more forward, of one micro-batch: the rollout's first.
absl::StatusOr<MismatchSums> PolicyTrainer::OwnRoutingMismatch(
    std::span<const TrainingSequence> sequences) const {
  MismatchSums sums;
  if (sequences.empty() || sequences[0].rollout_logprobs.empty()) return sums;
  std::vector<MicroBatch> micros = PackAll(sequences, /*replay=*/true);
  MicroBatch& micro = micros[0];
  micro.routed_rows.clear();
  const auto add = [&](size_t, const TokenScores& scores) -> absl::Status {
    for (size_t i = 0; i < micro.sequences.size(); ++i) {
      const TrainingSequence& s = sequences[micro.sequences[i]];
      const size_t first = micro.target_offsets[i], count = micro.target_offsets[i + 1] - first;
      const std::vector<float> rollout =
          Take(s.rollout_logprobs, {micro.target_positions.data() + first, count});
      const std::vector<uint8_t> mask(count, 1);
      if (absl::Status status = AddMismatch(scores.logprobs.subspan(first, count), rollout, mask,
                                            s.episode_tokens, &sums);
          !status.ok()) {
        return NameSequence(status, s);
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(executor_->Score(WeightsOf::kPolicy, {&micro, 1}, options_.temperature, add));
  return sums;
}

absl::StatusOr<std::vector<std::vector<float>>> PolicyTrainer::Score(
    std::span<const TrainingSequence> sequences) const {
  return ScoreWith(WeightsOf::kPolicy, sequences);
}

absl::StatusOr<std::vector<float>> PolicyTrainer::Gradient(const TrainingBatch& batch) {
  RETURN_IF_ERROR(ForwardBackward(batch, {}).status());
  return executor_->Gradient();
}

absl::Status PolicyTrainer::ScoreReference(TrainingBatch* batch) {
  ASSIGN_OR_RETURN(PerToken scores, ScoreWith(WeightsOf::kReference, batch->sequences));
  for (size_t i = 0; i < scores.size(); ++i) {
    batch->sequences[i].reference_logprobs = std::move(scores[i]);
  }
  return absl::OkStatus();
}

absl::Status PolicyTrainer::Save(const std::string& folder) {
  RETURN_IF_ERROR(executor_->Save(folder));
  for (const char* name : kModelFiles) {
    const std::string from = options_.model_folder + "/" + name;
    if (!std::filesystem::exists(from)) continue;
    ASSIGN_OR_RETURN(std::string content, ReadFile(from));
    if (name == std::string_view("config.json")) content = WithDtype(content, executor_->dtype());
    RETURN_IF_ERROR(WriteFileAtomically(folder + "/" + name, content));
  }
  return absl::OkStatus();
}

absl::Status PolicyTrainer::Load(const std::string& folder) { return executor_->Load(folder); }

}  // namespace orrery::trainer

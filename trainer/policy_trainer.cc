#include "trainer/policy_trainer.h"

#include <rapidjson/document.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {
namespace {

// Below this many bytes of parameters a gradient buffer for every micro-batch costs little.
constexpr int64_t kSmallModelBytes = 8 << 20;

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

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

absl::Status NameSequence(const absl::Status& status, const TrainingSequence& sequence) {
  return Annotate(status,
                  fmt::format("episode {} of group {}", sequence.episode_id, sequence.group_id));
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
    model::WeightStore* store, std::unique_ptr<model::WeightStore> reference,
    const PolicyTrainerOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PolicyLoss> loss, MakePolicyLoss(options.loss));
  RETURN_IF_ERROR(CheckSchedule(options.schedule));
  const bool needs_reference = options.loss.uses_reference() || options.reward_kl != KlKind::kNone;
  if (needs_reference && reference == nullptr) {
    return InvalidInput("a KL to the reference needs reference weights");
  }
  return std::unique_ptr<PolicyTrainer>(
      new PolicyTrainer(store, std::move(reference), std::move(loss), options));
}

PolicyTrainer::PolicyTrainer(model::WeightStore* store,
                             std::unique_ptr<model::WeightStore> reference,
                             std::unique_ptr<PolicyLoss> loss, const PolicyTrainerOptions& options)
    : store_(*store),
      reference_(std::move(reference)),
      loss_(std::move(loss)),
      options_(options),
      rope_(store->spec().rope_inv_freq, store->spec().max_positions),
      optimizer_(*store, options.optimizer),
      grads_(static_cast<size_t>(store->layout().num_elements)) {}

bool PolicyTrainer::small_model() const {
  return static_cast<int64_t>(grads_.size() * sizeof(float)) <= kSmallModelBytes;
}

float PolicyTrainer::inverse_temperature() const {
  // As the sampler: greedy responses carry log-probs at temperature 1.
  return options_.temperature > 0 ? 1 / options_.temperature : 1;
}

std::unique_ptr<TrainingOps> PolicyTrainer::TakeOps() {
  std::lock_guard lock(mutex_);
  if (idle_ops_.empty()) return std::make_unique<TrainingOps>(&store_, &rope_, options_.recompute);
  std::unique_ptr<TrainingOps> ops = std::move(idle_ops_.back());
  idle_ops_.pop_back();
  return ops;
}

void PolicyTrainer::GiveBack(std::unique_ptr<TrainingOps> ops) {
  std::lock_guard lock(mutex_);
  idle_ops_.push_back(std::move(ops));
}

absl::StatusOr<TrainStats> PolicyTrainer::Train(std::vector<TrainingBatch> batches) {
  // With one optimizer step the policy's own forward is the one at the sampling weights. With more,
  // log-probs are taken of all batches before the first step.
  std::vector<PerToken> old(batches.size());
  if (batches.size() > 1) {
    for (size_t i = 0; i < batches.size(); ++i) {
      ASSIGN_OR_RETURN(old[i], ScoreWith(store_, batches[i].sequences));
    }
  }
  TrainStats stats;
  Sums all;
  for (size_t i = 0; i < batches.size(); ++i) {
    const TrainingBatch& batch = batches[i];
    ASSIGN_OR_RETURN(const Sums sums, ForwardBackward(batch, old[i]));
    const double norm = optimizer_.GradNorm(grads_);
    if (!std::isfinite(norm)) return ExplainBadGradient(batch, old[i]);
    stats.learning_rate = LearningRate(options_.schedule, optimizer_.steps());
    optimizer_.Step(grads_, norm, stats.learning_rate);
    const auto start = std::chrono::steady_clock::now();
    store_.BeginUpdate();
    store_.Assign(optimizer_.master());
    store_.Commit(static_cast<PolicyVersion>(optimizer_.steps()));
    stats.sync_s += Seconds(start);
    stats.grad_norm += norm / static_cast<double>(batches.size());
    all.loss += sums.loss;
    all.mismatch += sums.mismatch;
    all.tokens += sums.tokens;
    all.micro_batches += sums.micro_batches;
  }
  const double steps = std::max<double>(1, static_cast<double>(batches.size()));
  const double tokens = std::max<double>(1, static_cast<double>(all.loss.num_tokens));
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
  return stats;
}

absl::StatusOr<PolicyTrainer::Sums> PolicyTrainer::ForwardBackward(const TrainingBatch& batch,
                                                                   const PerToken& old) {
  const std::vector<MicroBatch> micros =
      Pack(batch.sequences, options_.micro_batch_tokens, options_.share_prefix);
  const size_t n = micros.size();
  std::vector<Sums> sums(n);
  std::vector<absl::Status> statuses(n);
  std::fill(grads_.begin(), grads_.end(), 0.0f);
  const auto run = [&](size_t i, float* grads) {
    std::unique_ptr<TrainingOps> ops = TakeOps();
    statuses[i] = RunMicroBatch(batch, old, micros[i], grads, ops.get(), &sums[i]);
    GiveBack(std::move(ops));
  };
  if (small_model() && n > 1) {
    std::vector<std::vector<float>> parts(n);
    kernels::ParallelFor(static_cast<int64_t>(n), [&](int64_t i) {
      parts[i].assign(grads_.size(), 0.0f);
      run(static_cast<size_t>(i), parts[i].data());
    });
    SumGradients(parts);
  } else {
    for (size_t i = 0; i < n; ++i) run(i, grads_.data());
  }
  Sums total;
  for (size_t i = 0; i < n; ++i) {
    RETURN_IF_ERROR(statuses[i]);
    total.loss += sums[i].loss;
    total.mismatch += sums[i].mismatch;
    total.tokens += sums[i].tokens;
  }
  total.micro_batches = static_cast<int64_t>(n);
  return total;
}

void PolicyTrainer::SumGradients(const std::vector<std::vector<float>>& parts) {
  constexpr int64_t kChunk = 1 << 14;
  const int64_t size = static_cast<int64_t>(grads_.size());
  kernels::ParallelFor((size + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(size, (chunk + 1) * kChunk);
    for (const std::vector<float>& part : parts) {
      for (int64_t i = chunk * kChunk; i < end; ++i) grads_[i] += part[i];
    }
  });
}

absl::Status PolicyTrainer::RunMicroBatch(const TrainingBatch& batch, const PerToken& old,
                                          const MicroBatch& micro, float* grads, TrainingOps* ops,
                                          Sums* sums) {
  const model::Batch packed = micro.batch();
  ops->Begin(packed, micro.num_blocks, grads);
  const model::Value hidden = model::Forward(store_.spec(), store_.layout(), packed, *ops);
  const size_t n = micro.targets.size();
  std::vector<float> logps(n), entropies(n), dlogps(n), dentropies(n);
  const int64_t bad = ops->Logprobs(hidden, micro.targets, inverse_temperature(), logps, entropies);
  LossDenominators denominators;
  denominators.num_episodes = batch.num_episodes;
  denominators.num_trained_tokens = batch.num_trained_tokens;
  denominators.horizon = options_.loss_horizon;
  for (size_t i = 0; i < micro.sequences.size(); ++i) {
    const TrainingSequence& sequence = batch.sequences[micro.sequences[i]];
    const size_t first = micro.target_offsets[i], count = micro.target_offsets[i + 1] - first;
    const std::span<const int32_t> at(micro.target_positions.data() + first, count);
    if (bad >= static_cast<int64_t>(first) && bad < static_cast<int64_t>(first + count)) {
      return NameSequence(Failed("logits of token {} are not finite", at[bad - first]), sequence);
    }
    std::vector<float> advantages = Take(sequence.advantages, at);
    const std::vector<uint8_t> mask(count, 1);
    std::vector<float> rollout, reference, before;
    if (!sequence.rollout_logprobs.empty()) rollout = Take(sequence.rollout_logprobs, at);
    if (!sequence.reference_logprobs.empty()) reference = Take(sequence.reference_logprobs, at);
    SequenceView view;
    view.logp = std::span(logps).subspan(first, count);
    if (!old.empty()) before = Take(old[micro.sequences[i]], at);
    view.old_logp = old.empty() ? view.logp : std::span<const float>(before);
    view.rollout_logp = rollout;
    view.reference_logp = reference;
    if (options_.reward_kl != KlKind::kNone) {
      std::vector<double> penalty(count);
      KlPenaltyRewards(options_.reward_kl, view.old_logp, reference, mask, options_.reward_kl_coef,
                       penalty);
      for (size_t t = 0; t < count; ++t) advantages[t] += static_cast<float>(penalty[t]);
    }
    view.entropy = std::span(entropies).subspan(first, count);
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
    if (absl::Status s =
            loss_->Evaluate(view, denominators, std::span(dlogps).subspan(first, count),
                            std::span(dentropies).subspan(first, count), &sums->loss);
        !s.ok()) {
      return NameSequence(s, sequence);
    }
  }
  sums->tokens = packed.num_tokens();
  ops->Backward(dlogps, dentropies);
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
    if (!std::isfinite(optimizer_.GradNorm(grads_))) {
      return NameSequence(Failed("its gradient is not finite"), batch.sequences[i]);
    }
  }
  return Failed(
      "the gradient of optimizer step {} is not finite, though every sequence's own is: "
      "their sum overflows float32",
      optimizer_.steps());
}

absl::StatusOr<PolicyTrainer::PerToken> PolicyTrainer::ScoreWith(
    const model::WeightStore& weights, std::span<const TrainingSequence> sequences) const {
  const std::vector<MicroBatch> micros =
      Pack(sequences, options_.micro_batch_tokens, options_.share_prefix);
  PerToken out(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) out[i].assign(sequences[i].token_ids.size(), 0.0f);
  std::vector<absl::Status> statuses(micros.size());
  const auto run = [&](int64_t m) {
    const MicroBatch& micro = micros[m];
    const model::Batch packed = micro.batch();
    TrainingOps ops(&weights, &rope_, /*recompute=*/false);
    ops.Begin(packed, micro.num_blocks, /*grads=*/nullptr);
    const model::Value hidden = model::Forward(weights.spec(), weights.layout(), packed, ops);
    std::vector<float> logps(micro.targets.size()), entropies(micro.targets.size());
    const int64_t bad =
        ops.Logprobs(hidden, micro.targets, inverse_temperature(), logps, entropies);
    for (size_t i = 0; i < micro.sequences.size(); ++i) {
      for (size_t t = micro.target_offsets[i]; t < micro.target_offsets[i + 1]; ++t) {
        out[micro.sequences[i]][micro.target_positions[t]] = logps[t];
        if (static_cast<int64_t>(t) == bad) {
          statuses[m] =
              NameSequence(Failed("logits of token {} are not finite", micro.target_positions[t]),
                           sequences[micro.sequences[i]]);
        }
      }
    }
  };
  if (small_model()) {
    kernels::ParallelFor(static_cast<int64_t>(micros.size()), run);
  } else {
    for (size_t m = 0; m < micros.size(); ++m) run(static_cast<int64_t>(m));
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return out;
}

absl::StatusOr<std::vector<std::vector<float>>> PolicyTrainer::Score(
    std::span<const TrainingSequence> sequences) const {
  return ScoreWith(store_, sequences);
}

absl::StatusOr<std::vector<float>> PolicyTrainer::Gradient(const TrainingBatch& batch) {
  ASSIGN_OR_RETURN(const Sums sums, ForwardBackward(batch, {}));
  (void)sums;
  return grads_;
}

absl::Status PolicyTrainer::ScoreReference(TrainingBatch* batch) {
  CHECK(reference_ != nullptr);
  ASSIGN_OR_RETURN(PerToken scores, ScoreWith(*reference_, batch->sequences));
  for (size_t i = 0; i < scores.size(); ++i) {
    batch->sequences[i].reference_logprobs = std::move(scores[i]);
  }
  return absl::OkStatus();
}

absl::Status PolicyTrainer::Save(const std::string& folder) {
  RETURN_IF_ERROR(store_.SaveCheckpoint(folder));
  RETURN_IF_ERROR(optimizer_.Save(folder));
  for (const char* name : kModelFiles) {
    const std::string from = options_.model_folder + "/" + name;
    if (!std::filesystem::exists(from)) continue;
    ASSIGN_OR_RETURN(std::string content, ReadFile(from));
    if (name == std::string_view("config.json")) content = WithDtype(content, store_.dtype());
    RETURN_IF_ERROR(WriteFileAtomically(folder + "/" + name, content));
  }
  return absl::OkStatus();
}

absl::Status PolicyTrainer::Load(const std::string& folder) {
  RETURN_IF_ERROR(optimizer_.Load(folder));
  store_.BeginUpdate();
  store_.Assign(optimizer_.master());
  store_.Commit(static_cast<PolicyVersion>(optimizer_.steps()));
  return absl::OkStatus();
}

}  // namespace orrery::trainer

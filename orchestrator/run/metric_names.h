// The names of all metrics, here and nowhere else. They follow the field's (Miles, slime), so that
// curves of different systems carry the same labels. What each one is:
#pragma once

#include <string>
#include <string_view>

namespace orrery::run::metric {

// Scores, over the episodes whose scoring came to a result, those that dynamic sampling then
// filtered out among them: the curve shows the policy, not the filter.
inline constexpr std::string_view kRawReward = "rollout/raw_reward";  // mean
inline constexpr std::string_view kRewardStd = "rollout/reward_std";  // population std
inline constexpr std::string_view kRewardPrefix = "rollout/reward/";  // + reward name: mean
inline constexpr std::string_view kZeroStdGroupRatio = "rollout/zero_std_group_ratio";
// Policy tokens of an episode, over the same episodes.
inline constexpr std::string_view kResponseLenMean = "rollout/response_len/mean";
inline constexpr std::string_view kResponseLenMedian = "rollout/response_len/median";
inline constexpr std::string_view kResponseLenMin = "rollout/response_len/min";
inline constexpr std::string_view kResponseLenMax = "rollout/response_len/max";
inline constexpr std::string_view kPromptLenMean = "rollout/prompt_len/mean";
inline constexpr std::string_view kTruncatedRatio = "rollout/truncated_ratio";
inline constexpr std::string_view kTurnsMean = "rollout/turns/mean";
// Share of episodes that repeat another response of their group word for word: near 1, the seeds
// or the temperature are wrong.
inline constexpr std::string_view kDuplicateRatio = "rollout/duplicate_ratio";
// Nats, mean over trained tokens; where a step trained none, over all that were sampled.
inline constexpr std::string_view kEntropy = "rollout/entropy";
inline constexpr std::string_view kSubmitted = "rollout/samples/submitted";
inline constexpr std::string_view kScored = "rollout/samples/scored";
inline constexpr std::string_view kFailed = "rollout/samples/failed";
inline constexpr std::string_view kFiltered = "rollout/samples/filtered";
inline constexpr std::string_view kAborted = "rollout/samples/aborted";
inline constexpr std::string_view kVersionMin = "rollout/weight_version/min";
inline constexpr std::string_view kVersionMax = "rollout/weight_version/max";

// Host memory of the recorded routing, prompts once a group.
inline constexpr std::string_view kRoutedExpertsBytes = "rollout/routed_experts_bytes";

inline constexpr std::string_view kLoss = "train/loss";
inline constexpr std::string_view kPgLoss = "train/pg_loss";
inline constexpr std::string_view kKlLoss = "train/kl_loss";
inline constexpr std::string_view kGradNorm = "train/grad_norm";  // before clipping
inline constexpr std::string_view kLearningRate = "train/lr";
inline constexpr std::string_view kPpoKl = "train/ppo_kl";  // mean of old - new log-prob
inline constexpr std::string_view kPgClipfrac = "train/pg_clipfrac";
inline constexpr std::string_view kReferenceKl = "train/ref_kl";  // where there is a reference
// Of a correction (tis, icepop, mis), where one is set, and of sequence masking; names as in Miles.
inline constexpr std::string_view kTis = "train/tis";  // mean ratio before it is bounded
inline constexpr std::string_view kTisAbs = "train/tis_abs";
inline constexpr std::string_view kTisClipfrac = "train/tis_clipfrac";
inline constexpr std::string_view kRejectedRatio = "train/rejected_ratio";
inline constexpr std::string_view kOpsmClipfrac = "train/opsm_clipfrac";
// Of routing replay: share of (token, layer with experts) whose own top k is another set than the
// replayed one, at the sampling weights; train-rollout KL of the rollout's first micro-batch with
// the trainer's own routing, and with the replayed one.
inline constexpr std::string_view kRoutingDiffering = "train/routing_replay/differing";
inline constexpr std::string_view kOwnRoutingKl = "train/routing_replay/own_routing_kl";
inline constexpr std::string_view kReplayedKl = "train/routing_replay/replayed_kl";
inline constexpr std::string_view kTrainRolloutKl = "train/train_rollout_kl";
inline constexpr std::string_view kLogprobDiffMean = "train/train_rollout_logprob_abs_diff/mean";
inline constexpr std::string_view kLogprobDiffMax = "train/train_rollout_logprob_abs_diff/max";
inline constexpr std::string_view kTrainedTokens = "train/trained_tokens";
inline constexpr std::string_view kProcessedTokens = "train/processed_tokens";
inline constexpr std::string_view kMicroBatches = "train/micro_batches";

// Wall time of a step and its parts; other_s is what the named parts leave of step_s.
inline constexpr std::string_view kStepSeconds = "perf/step_s";
inline constexpr std::string_view kRolloutSeconds = "perf/rollout_s";
inline constexpr std::string_view kRewardSeconds = "perf/reward_s";
inline constexpr std::string_view kTrainSeconds = "perf/train_s";
inline constexpr std::string_view kSyncSeconds = "perf/sync_s";
inline constexpr std::string_view kEvalSeconds = "perf/eval_s";
inline constexpr std::string_view kOtherSeconds = "perf/other_s";
// Writing the step's samples, beside the step and the rollout that follows: in step_s only where
// the loop had to wait for it, as other_s of the step after.
inline constexpr std::string_view kWriteSeconds = "perf/write_s";
inline constexpr std::string_view kRolloutTokensPerSecond = "perf/rollout_tokens_per_s";
inline constexpr std::string_view kTrainTokensPerSecond = "perf/train_tokens_per_s";
inline constexpr std::string_view kRssBytes = "perf/rss_bytes";
// Responses that made room in the KV cache in this step, evaluations among them; of these, whose
// keys and values went to the host's memory; and what was copied there and back of them and of
// prompts (rollout.preemption).
inline constexpr std::string_view kPreemptions = "perf/preemptions";
inline constexpr std::string_view kSwaps = "perf/swaps";
inline constexpr std::string_view kSwappedBytes = "perf/swapped_bytes";
// Where a GPU computes: memory taken on it so far at most, whoever took it; what the plan said
// (orrery plan); and seconds in which memory changed hands between rollout and training.
inline constexpr std::string_view kGpuMemoryPeak = "perf/gpu_memory_peak_bytes";
inline constexpr std::string_view kGpuMemoryPlanned = "perf/gpu_memory_planned_bytes";
inline constexpr std::string_view kMemoryTurnSeconds = "perf/memory_turn_s";

inline constexpr std::string_view kEvalPrefix = "eval/";
inline constexpr std::string_view kAccuracySuffix = "/accuracy";

// eval/<name>/accuracy and its companions.
inline std::string Eval(std::string_view name, std::string_view what) {
  std::string full(kEvalPrefix);
  full += name;
  full += '/';
  full += what;
  return full;
}

// Whether a rerun may differ in it: a wall time, a rate or a memory size.
inline bool IsTiming(std::string_view name) { return name.starts_with("perf/"); }

}  // namespace orrery::run::metric

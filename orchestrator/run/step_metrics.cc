#include "orchestrator/run/step_metrics.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "orchestrator/base/check.h"
#include "orchestrator/run/metric_names.h"

namespace orrery::run {
namespace {

// Whether the episode has a score, that of a filtered one included.
bool HasScore(const Episode& episode) {
  return (episode.status == EpisodeStatus::kScored || episode.status == EpisodeStatus::kFiltered) &&
         episode.outcome.kind == Outcome::Kind::kScored;
}

template <typename Use>
void ForEachScored(const std::vector<EpisodeGroup>& groups, const Use& use) {
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) {
      if (HasScore(episode)) use(episode);
    }
  }
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double StandardDeviation(const std::vector<double>& values) {
  const double mean = Mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double PolicyTokens(const Episode& episode) {
  size_t tokens = 0;
  for (const Sample& sample : episode.samples) tokens += sample.num_policy_tokens();
  return static_cast<double>(tokens);
}

double PromptTokens(const Episode& episode) {
  if (episode.samples.empty() || episode.samples[0].segments.empty()) return 0;
  const Segment& first = episode.samples[0].segments[0];
  return first.author == Author::kPrompt ? static_cast<double>(first.token_ids.size()) : 0;
}

void AddCounts(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  std::array<double, 5> counts{};
  double submitted = 0;
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) {
      CHECK(episode.status != EpisodeStatus::kRunning)
          << "episode " << episode.episode_id << " has no terminal state";
      ++counts[static_cast<size_t>(episode.status)];
      ++submitted;
    }
  }
  const auto count = [&](EpisodeStatus status) { return counts[static_cast<size_t>(status)]; };
  metrics->Set(metric::kSubmitted, submitted);
  metrics->Set(metric::kScored, count(EpisodeStatus::kScored));
  metrics->Set(metric::kFailed, count(EpisodeStatus::kFailed));
  metrics->Set(metric::kFiltered, count(EpisodeStatus::kFiltered));
  metrics->Set(metric::kAborted, count(EpisodeStatus::kAborted));
}

void AddRewards(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  std::vector<double> scores;
  std::map<std::string, std::vector<double>> parts;
  ForEachScored(groups, [&](const Episode& episode) {
    scores.push_back(episode.outcome.score);
    for (const auto& [name, score] : episode.outcome.parts) parts[name].push_back(score);
  });
  if (scores.empty()) return;
  metrics->Set(metric::kRawReward, Mean(scores));
  metrics->Set(metric::kRewardStd, StandardDeviation(scores));
  if (parts.size() < 2) return;  // a single part repeats the reward
  for (const auto& [name, values] : parts) {
    metrics->Set(std::string(metric::kRewardPrefix) + name, Mean(values));
  }
}

// Groups whose scores are all the same give no gradient.
void AddZeroStdGroups(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  double with_scores = 0;
  double zero_std = 0;
  for (const EpisodeGroup& group : groups) {
    std::set<double> scores;
    for (const Episode& episode : group.episodes) {
      if (HasScore(episode)) scores.insert(episode.outcome.score);
    }
    if (!scores.empty()) ++with_scores;
    if (scores.size() == 1) ++zero_std;
  }
  if (with_scores > 0) metrics->Set(metric::kZeroStdGroupRatio, zero_std / with_scores);
}

void AddLengths(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  std::vector<double> responses, prompts, truncated, turns;
  ForEachScored(groups, [&](const Episode& episode) {
    responses.push_back(PolicyTokens(episode));
    prompts.push_back(PromptTokens(episode));
    truncated.push_back(episode.truncated() ? 1 : 0);
    turns.push_back(episode.num_turns);
  });
  if (responses.empty()) return;
  metrics->Set(metric::kResponseLenMean, Mean(responses));
  metrics->Set(metric::kResponseLenMedian, Median(responses));
  metrics->Set(metric::kResponseLenMin, *std::min_element(responses.begin(), responses.end()));
  metrics->Set(metric::kResponseLenMax, *std::max_element(responses.begin(), responses.end()));
  metrics->Set(metric::kPromptLenMean, Mean(prompts));
  metrics->Set(metric::kTruncatedRatio, Mean(truncated));
  metrics->Set(metric::kTurnsMean, Mean(turns));
}

void AddDuplicates(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  double episodes = 0;
  double distinct = 0;
  for (const EpisodeGroup& group : groups) {
    std::set<std::string_view> responses;
    for (const Episode& episode : group.episodes) {
      if (!HasScore(episode)) continue;
      ++episodes;
      responses.insert(episode.response_text);
    }
    distinct += static_cast<double>(responses.size());
  }
  if (episodes > 0) metrics->Set(metric::kDuplicateRatio, (episodes - distinct) / episodes);
}

void AddVersions(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  std::optional<std::pair<PolicyVersion, PolicyVersion>> range;
  ForEachScored(groups, [&](const Episode& episode) {
    for (const Sample& sample : episode.samples) {
      for (const Segment& segment : sample.segments) {
        for (const PolicyVersion v : segment.versions) {
          range = range ? std::pair(std::min(range->first, v), std::max(range->second, v))
                        : std::pair(v, v);
        }
      }
    }
  });
  if (!range) return;
  metrics->Set(metric::kVersionMin, static_cast<double>(range->first));
  metrics->Set(metric::kVersionMax, static_cast<double>(range->second));
}

void AddRoutedExperts(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  std::set<const void*> prompts;  // shared within a group
  int64_t bytes = 0;
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) {
      for (const Sample& sample : episode.samples) {
        if (sample.routed_experts == nullptr) continue;
        const RoutedExperts& routed = *sample.routed_experts;
        bytes += static_cast<int64_t>(routed.rest.size());
        if (prompts.insert(routed.prompt.get()).second) bytes += routed.prompt_bytes();
      }
    }
  }
  if (bytes > 0) metrics->Set(metric::kRoutedExpertsBytes, static_cast<double>(bytes));
}

double SampledTokens(const std::vector<EpisodeGroup>& groups) {
  double tokens = 0;
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) tokens += PolicyTokens(episode);
  }
  return tokens;
}

}  // namespace

void AddRolloutMetrics(const std::vector<EpisodeGroup>& groups, StepMetrics* metrics) {
  AddRewards(groups, metrics);
  AddZeroStdGroups(groups, metrics);
  AddLengths(groups, metrics);
  AddDuplicates(groups, metrics);
  AddVersions(groups, metrics);
  AddRoutedExperts(groups, metrics);
  AddCounts(groups, metrics);
}

void AddTrainMetrics(const TrainStats& stats, StepMetrics* metrics) {
  metrics->Set(metric::kEntropy, stats.entropy);
  metrics->Set(metric::kLoss, stats.loss);
  metrics->Set(metric::kPgLoss, stats.pg_loss);
  metrics->Set(metric::kKlLoss, stats.kl_loss);
  metrics->Set(metric::kGradNorm, stats.grad_norm);
  metrics->Set(metric::kLearningRate, stats.learning_rate);
  metrics->Set(metric::kPpoKl, stats.ppo_kl);
  metrics->Set(metric::kPgClipfrac, stats.pg_clipfrac);
  if (stats.reference_kl) metrics->Set(metric::kReferenceKl, *stats.reference_kl);
  if (stats.correction) {
    metrics->Set(metric::kTis, stats.correction->ratio);
    metrics->Set(metric::kTisAbs, stats.correction->ratio_abs_diff);
    metrics->Set(metric::kTisClipfrac, stats.correction->bounded);
    metrics->Set(metric::kRejectedRatio, stats.correction->rejected);
  }
  if (stats.opsm_masked) metrics->Set(metric::kOpsmClipfrac, *stats.opsm_masked);
  if (stats.routing_replay) {
    metrics->Set(metric::kRoutingDiffering, stats.routing_replay->differing);
    metrics->Set(metric::kOwnRoutingKl, stats.routing_replay->own_routing_kl);
    metrics->Set(metric::kReplayedKl, stats.routing_replay->replayed_kl);
  }
  metrics->Set(metric::kTrainRolloutKl, stats.train_rollout_kl);
  metrics->Set(metric::kLogprobDiffMean, stats.train_rollout_logprob_abs_diff_mean);
  metrics->Set(metric::kLogprobDiffMax, stats.train_rollout_logprob_abs_diff_max);
  metrics->Set(metric::kTrainedTokens, static_cast<double>(stats.num_trained_tokens));
  metrics->Set(metric::kProcessedTokens, static_cast<double>(stats.num_processed_tokens));
  metrics->Set(metric::kMicroBatches, static_cast<double>(stats.num_micro_batches));
}

void AddPerfMetrics(const StepSeconds& seconds, const std::vector<EpisodeGroup>& groups,
                    const TrainStats& stats, StepMetrics* metrics) {
  const double named =
      seconds.rollout + seconds.reward + seconds.train + seconds.sync + seconds.eval;
  metrics->Set(metric::kStepSeconds, seconds.step);
  metrics->Set(metric::kRolloutSeconds, seconds.rollout);
  metrics->Set(metric::kRewardSeconds, seconds.reward);
  metrics->Set(metric::kTrainSeconds, seconds.train);
  metrics->Set(metric::kSyncSeconds, seconds.sync);
  metrics->Set(metric::kEvalSeconds, seconds.eval);
  metrics->Set(metric::kOtherSeconds, std::max(0.0, seconds.step - named));
  if (seconds.rollout > 0) {
    metrics->Set(metric::kRolloutTokensPerSecond, SampledTokens(groups) / seconds.rollout);
  }
  if (seconds.train > 0) {
    metrics->Set(metric::kTrainTokensPerSecond,
                 static_cast<double>(stats.num_processed_tokens) / seconds.train);
  }
  metrics->Set(metric::kRssBytes, ResidentBytes());
}

void AddGpuMemory(const GpuMemory& memory, StepMetrics* metrics) {
  metrics->Set(metric::kGpuMemoryPeak, static_cast<double>(memory.peak_bytes));
  metrics->Set(metric::kGpuMemoryPlanned, static_cast<double>(memory.planned_bytes));
  metrics->Set(metric::kMemoryTurnSeconds, memory.turn_seconds);
}

void AddEngineUse(const EngineUse& use, StepMetrics* metrics) {
  metrics->Set(metric::kPreemptions, static_cast<double>(use.preemptions));
  metrics->Set(metric::kSwaps, static_cast<double>(use.swaps));
  metrics->Set(metric::kSwappedBytes, static_cast<double>(use.swapped_bytes));
}

double ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long long total = 0;
  long long resident = 0;
  const int found = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  if (found != 2) return 0;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace orrery::run

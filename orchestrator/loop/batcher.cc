#include "orchestrator/loop/batcher.h"

#include <algorithm>

namespace orrery {
namespace {

bool IsTrained(const Episode& episode, const BatcherOptions& options) {
  return episode.status == EpisodeStatus::kScored &&
         !(options.mask_truncated && episode.truncated());
}

int64_t PolicyTokens(const Episode& episode) {
  int64_t n = 0;
  for (const Sample& sample : episode.samples) {
    n += static_cast<int64_t>(sample.num_policy_tokens());
  }
  return n;
}

int64_t TrainedTokens(const EpisodeGroup& group, const BatcherOptions& options) {
  int64_t n = 0;
  for (const Episode& episode : group.episodes) {
    if (IsTrained(episode, options)) n += PolicyTokens(episode);
  }
  return n;
}

void AddEpisode(const Episode& episode, TrainingBatch* batch) {
  if (PolicyTokens(episode) == 0) return;
  ++batch->num_episodes;
  batch->num_trained_tokens += PolicyTokens(episode);
  for (const Sample& sample : episode.samples) {
    if (sample.num_policy_tokens() > 0) batch->sequences.push_back(ToSequence(episode, sample));
  }
}

void AddGroup(const EpisodeGroup& group, const BatcherOptions& options, TrainingBatch* batch) {
  for (const Episode& episode : group.episodes) {
    if (IsTrained(episode, options)) AddEpisode(episode, batch);
  }
}

}  // namespace

bool IsZeroStd(const EpisodeGroup& group) {
  const Episode* first = nullptr;
  for (const Episode& episode : group.episodes) {
    if (episode.status != EpisodeStatus::kScored) continue;
    if (first == nullptr) first = &episode;
    if (episode.outcome.score != first->outcome.score) return false;
  }
  return true;
}

TrainingSequence ToSequence(const Episode& episode, const Sample& sample) {
  TrainingSequence s;
  s.episode_id = episode.episode_id;
  s.group_id = episode.group_id;
  s.episode_tokens = PolicyTokens(episode);
  s.routed_experts = sample.routed_experts;
  if (!sample.segments.empty() && sample.segments[0].author == Author::kPrompt) {
    s.shared_prefix = static_cast<int32_t>(sample.segments[0].token_ids.size());
  }
  for (const Segment& segment : sample.segments) {
    const bool trained = segment.author == Author::kPolicy;
    const size_t n = segment.token_ids.size();
    s.token_ids.insert(s.token_ids.end(), segment.token_ids.begin(), segment.token_ids.end());
    s.loss_mask.insert(s.loss_mask.end(), n, trained ? 1 : 0);
    s.advantages.insert(s.advantages.end(), n,
                        trained ? static_cast<float>(episode.advantage) : 0.0f);
    if (trained) {
      s.rollout_logprobs.insert(s.rollout_logprobs.end(), segment.logprobs.begin(),
                                segment.logprobs.end());
    } else {
      s.rollout_logprobs.insert(s.rollout_logprobs.end(), n, 0.0f);
    }
  }
  return s;
}

TrainingBatch MakeMeasuredBatch(const std::vector<EpisodeGroup>& groups) {
  TrainingBatch batch;
  for (const EpisodeGroup& group : groups) {
    for (const Episode& episode : group.episodes) {
      const bool has_score =
          episode.status == EpisodeStatus::kScored || episode.status == EpisodeStatus::kFiltered;
      if (has_score) AddEpisode(episode, &batch);
    }
  }
  return batch;
}

BatcherOptions ToBatcher(const configs::Experiment& experiment) {
  BatcherOptions options;
  options.drop_zero_std_groups = experiment.DropsZeroStdGroups();
  options.mask_truncated = experiment.algorithm.truncated == "mask";
  options.optimizer_steps = experiment.trainer.optimizer_steps_per_rollout;
  return options;
}

std::vector<TrainingBatch> MakeBatches(const std::vector<EpisodeGroup>& groups,
                                       const BatcherOptions& options) {
  std::vector<const EpisodeGroup*> kept;
  int64_t total = 0;
  for (const EpisodeGroup& group : groups) {
    if (options.drop_zero_std_groups && IsZeroStd(group)) continue;
    kept.push_back(&group);
    total += TrainedTokens(group, options);
  }
  std::vector<TrainingBatch> batches;
  int64_t seen = 0;
  size_t next = 0;
  for (int64_t b = 0; b < options.optimizer_steps; ++b) {
    TrainingBatch batch;
    const int64_t until = total * (b + 1) / options.optimizer_steps;
    while (next < kept.size() && (seen < until || b + 1 == options.optimizer_steps)) {
      AddGroup(*kept[next], options, &batch);
      seen += TrainedTokens(*kept[next], options);
      ++next;
    }
    if (batch.num_trained_tokens > 0) batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace orrery

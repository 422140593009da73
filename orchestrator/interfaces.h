// What the RL loop is written on. Each is implemented where its name says; the loop cannot tell an
// embedded object from a proxy of a remote one.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "orchestrator/types.h"

namespace orrery {

// How one request is sampled. Stop ids include the checkpoint's end-of-sequence ids.
struct SamplingOptions {
  float temperature = 1;  // 0: greedy
  int64_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;  // the response ends with the token that completes one
};

// n responses to one prompt. The prompt is computed once for all of them.
struct GenerationRequest {
  std::vector<int32_t> prompt_ids;
  SamplingOptions sampling;
  std::vector<uint64_t> seeds;  // one a response
  // New tokens each response may have, where they differ; empty: sampling.max_new_tokens for all.
  std::vector<int64_t> new_token_limits;
  bool return_routed_experts = false;  // refused by a model without experts
  int64_t top_logprobs = 0;            // so many of the most likely tokens at every place

  int64_t new_tokens(size_t response) const {
    return new_token_limits.empty() ? sampling.max_new_tokens : new_token_limits[response];
  }
};

struct Generation {
  std::vector<int32_t> token_ids;  // the stop token included where one was drawn
  std::vector<float> logprobs;
  std::vector<PolicyVersion> versions;
  FinishReason finish_reason = FinishReason::kStop;
  std::string error;  // where kRejected
  double entropy_sum = 0;
  // Where asked for: of the prompt and all tokens but the last. Aborted early: of fewer.
  RoutedExperts routed_experts;
  std::vector<TokenLogprob> top_logprobs;  // where asked for: n a token (Segment)
};

using RequestId = uint64_t;

struct EngineStats {
  int64_t prompt_tokens = 0;  // computed, after sharing
  int64_t shared_tokens = 0;  // prompt tokens that were not computed again
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t swaps = 0;  // of them: those whose keys and values were kept in the host's memory
  int64_t swapped_out_bytes = 0, swapped_in_bytes = 0;  // to the host, and back
  int64_t steps = 0;
  int64_t peak_running = 0;
  int64_t kv_blocks = 0, peak_kv_blocks = 0;
};

// Continuous batching over token ids. Thread-safe. Results of a request depend on the request and
// the weights alone: not on what else runs, when it came, or preemption.
class RolloutEngine {
 public:
  // index: which of the request's n responses. Called once for each, from the engine's thread; may
  // submit, must not block.
  using OnDone = std::function<void(size_t index, Generation generation)>;

  struct Submission {
    GenerationRequest request;
    OnDone on_done;
  };

  virtual ~RolloutEngine() = default;
  // All at once: the engine's next step sees them together. Their ids, which grow in their order.
  virtual std::vector<RequestId> SubmitAll(std::vector<Submission> submissions) = 0;
  RequestId Submit(GenerationRequest request, OnDone on_done);
  // Ends what is left of a request: its responses arrive as kAborted with what was sampled so far.
  virtual void Abort(RequestId id) = 0;
  // Between two steps of the engine, nothing runs until Resume. Requests are kept.
  virtual void Pause() = 0;
  virtual void Resume() = 0;
  virtual PolicyVersion version() const = 0;
  virtual EngineStats stats() const = 0;
};

inline RequestId RolloutEngine::Submit(GenerationRequest request, OnDone on_done) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(on_done)});
  return SubmitAll(std::move(one)).front();
}

// The weights that a rollout engine samples from. Begin pauses sampling; a dropped transaction
// leaves the engine refusing to sample rather than with half of the new weights.
class WeightReceiver {
 public:
  virtual ~WeightReceiver() = default;
  virtual absl::Status BeginUpdate(PolicyVersion version) = 0;
  virtual absl::Status Commit(PolicyVersion version) = 0;
};

// Text to ids and back, for the checkpoint at hand. Thread-safe.
class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special) const = 0;
  // The ids of a prompt as the model sees it: chat template applied, generation prompt added.
  virtual absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Prompt& prompt) const = 0;
};

// Prompts to groups of finished episodes, rewards not yet given.
class EpisodeRunner {
 public:
  virtual ~EpisodeRunner() = default;
  // One group a prompt, `seeds` and ids filled in by the caller through `groups`: each group's
  // episodes exist with id, group and seed, and come back with samples. Groups keep their order.
  virtual absl::Status Run(std::vector<EpisodeGroup>* groups) = 0;
};

// Grades episodes: fills outcome and status (scored or failed).
class Grader {
 public:
  virtual ~Grader() = default;
  virtual void Grade(std::vector<EpisodeGroup>* groups) = 0;
};

// Optimizer steps, scoring, and its own part of a checkpoint.
class Trainer {
 public:
  virtual ~Trainer() = default;
  // The batches of one rollout, one optimizer step each, in order. An error (a value that is not
  // finite: the sample is named) leaves weights and optimizer as they were before the failing step.
  virtual absl::StatusOr<TrainStats> Train(std::vector<TrainingBatch> batches) = 0;
  // A rollout without anything to train: entropy and train-rollout difference of its tokens at the
  // weights as they are, which stay as they are. Loss and gradient are those of nothing: 0.
  virtual absl::StatusOr<TrainStats> Measure(const TrainingBatch& batch) = 0;
  // Fills reference_logprobs from the frozen reference weights.
  virtual absl::Status ScoreReference(TrainingBatch* batch) = 0;
  // Hugging Face weights, optimizer state and step count into (from) an existing folder.
  virtual absl::Status Save(const std::string& folder) = 0;
  virtual absl::Status Load(const std::string& folder) = 0;
  virtual PolicyVersion version() const = 0;
  virtual int64_t optimizer_steps() const = 0;
};

}  // namespace orrery

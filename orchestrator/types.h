// The vocabulary of a run: what travels between dataset, rollout, rewards, batcher and trainer.
//
// A prompt is sampled n times; the n episodes form a group. An episode yields 1..k samples (k > 1
// when a harness splits a conversation); its samples share one reward and one loss denominator. A
// sample is one token sequence that is trained, a list of segments by who wrote them. A single turn
// is the case of one sample with two segments (prompt, response).
//
// Plain values; no thread rules. Counts of episodes close at every step:
//   submitted = scored + failed + filtered + aborted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace orrery {

// Grows by one with every committed weight update and never goes back, over resumes too.
using PolicyVersion = uint64_t;

// Who wrote a run of tokens. Only kPolicy tokens were sampled and are trained.
enum class Author : uint8_t { kPrompt, kPolicy, kTool, kTemplate };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

struct Segment {
  Author author = Author::kPrompt;
  std::vector<int32_t> token_ids;
  // For kPolicy as long as token_ids, else empty. Natural logarithm of the unfiltered distribution
  // at the sampling temperature (temperature 0: at temperature 1).
  std::vector<float> logprobs;
  // For kPolicy: the weights each token was sampled with; as long as token_ids, else empty.
  std::vector<PolicyVersion> versions;
  // For kPolicy, where asked for (rollout.top_logprobs): the n most likely tokens at the place of
  // each token, most likely first, n after n; log-probs as above.
  std::vector<TokenLogprob> top_logprobs;
};

enum class FinishReason : uint8_t {
  kStop,      // a stop token or stop string
  kLength,    // the token limit or the context ended it: truncated
  kAborted,   // somebody asked; what was sampled so far is kept
  kRejected,  // never ran: the request cannot be served (error says why)
};

// Which experts computed the tokens of one sequence, as the sampler's router chose them: for each
// position and layer with experts top_k ids, largest weight first. Of a position that was computed
// more than once (preemption, later turns) the first computation counts: its log-prob is the one
// that was recorded. The last token of a sequence was never computed and has none.
struct RoutedExperts {
  int32_t num_layers = 0;  // with experts
  int32_t top_k = 0;
  int32_t id_bytes = 1;  // of an id: 1, or 2 (low byte first) beyond 256 experts
  // Positions from 0 on; the responses to one prompt share it. Null: none.
  std::shared_ptr<const std::vector<uint8_t>> prompt;
  std::vector<uint8_t> rest;  // of the positions that follow

  int64_t token_bytes() const { return int64_t{num_layers} * top_k * id_bytes; }
  int64_t prompt_bytes() const {
    return prompt == nullptr ? 0 : static_cast<int64_t>(prompt->size());
  }
  int64_t num_bytes() const { return prompt_bytes() + static_cast<int64_t>(rest.size()); }
  int64_t num_positions() const { return token_bytes() == 0 ? 0 : num_bytes() / token_bytes(); }
  // REQUIRES: position < num_positions(). No position lies on both parts.
  const uint8_t* At(int64_t position) const {
    const int64_t offset = position * token_bytes();
    return offset < prompt_bytes() ? prompt->data() + offset
                                   : rest.data() + (offset - prompt_bytes());
  }
};

struct Sample {
  std::vector<Segment> segments;
  FinishReason finish_reason = FinishReason::kStop;
  std::shared_ptr<const RoutedExperts> routed_experts;  // null: nobody asked for them

  bool truncated() const { return finish_reason == FinishReason::kLength; }
  size_t num_tokens() const {
    size_t n = 0;
    for (const Segment& segment : segments) n += segment.token_ids.size();
    return n;
  }
  size_t num_policy_tokens() const {
    size_t n = 0;
    for (const Segment& segment : segments) {
      if (segment.author == Author::kPolicy) n += segment.token_ids.size();
    }
    return n;
  }
};

// One chat message as datasets and chat templates see it.
struct Message {
  std::string role;  // system, user, assistant, tool
  std::string content;
};

// One row of a dataset: the task that an episode works on.
struct Prompt {
  std::string id;                 // stable name of the row, e.g. "train/17"
  std::vector<Message> messages;  // rendered through the chat template, unless text is set
  std::string text;               // a raw prompt, not rendered; used when messages is empty
  std::string answer;             // the ground truth that the rewards compare with
  std::string solution;           // full reference response, for sft; may be empty
  // For sft of several turns, instead of `solution`: the turns that follow `messages`. Those of the
  // assistant are learnt, those of tools are given.
  std::vector<Message> solution_messages;
  std::map<std::string, std::string> metadata;  // every other mapped field
};

// How an attempt at scoring ended. A failure of the infrastructure is never a score.
struct Outcome {
  enum class Kind : uint8_t { kScored, kFailed };
  Kind kind = Kind::kScored;
  double score = 0;
  std::string why;  // for a person: how the answer was found, or what failed
  std::vector<std::pair<std::string, double>> parts;  // score by reward name, before weights

  static Outcome Scored(double score, std::string why) {
    return {Kind::kScored, score, std::move(why), {}};
  }
  static Outcome Failed(std::string why) { return {Kind::kFailed, 0, std::move(why), {}}; }
};

// The one terminal state of every submitted episode.
enum class EpisodeStatus : uint8_t { kRunning, kScored, kFailed, kFiltered, kAborted };

struct Episode {
  uint64_t episode_id = 0;  // unique in the run: (step, prompt, index) in submission order
  uint64_t group_id = 0;
  int32_t index_in_group = 0;
  uint64_t seed = 0;  // HashSeed({run seed, episode_id}); turns derive theirs from it
  std::vector<Sample> samples;
  std::string response_text;  // the policy's words that rewards grade: the last turn's
  int32_t num_turns = 1;
  EpisodeStatus status = EpisodeStatus::kRunning;
  Outcome outcome;
  double advantage = 0;
  bool trained = true;  // false: scored, in its group's baseline, but no token of it is trained

  bool truncated() const { return !samples.empty() && samples.back().truncated(); }
};

// The episodes of one prompt, in submission order whatever order they finished in.
struct EpisodeGroup {
  uint64_t group_id = 0;
  Prompt prompt;
  std::vector<Episode> episodes;
};

// One sequence as the trainer takes it: all arrays are num_tokens long and aligned by position.
struct TrainingSequence {
  uint64_t episode_id = 0;
  uint64_t group_id = 0;
  // Sequences of one group that begin with the same ids may share that part: the trainer computes
  // it once. Length of the common beginning, 0 where nothing is shared.
  int32_t shared_prefix = 0;
  std::vector<int32_t> token_ids;
  std::vector<uint8_t> loss_mask;         // 1: this token was sampled and is trained
  std::vector<float> rollout_logprobs;    // 0 where loss_mask is 0
  std::vector<float> advantages;          // per token; constant over an episode for GRPO
  std::vector<float> reference_logprobs;  // empty unless a reference model is configured
  std::shared_ptr<const RoutedExperts> routed_experts;  // of the sampler, for routing replay
  // Trained tokens of the whole episode (all its samples): the loss denominator they share.
  int64_t episode_tokens = 0;
};

// What one optimizer step consumes. The trainer packs it into micro-batches as it likes: loss and
// gradient do not depend on how.
struct TrainingBatch {
  std::vector<TrainingSequence> sequences;
  // Denominators are global, set by the batcher over all ranks.
  int64_t num_episodes = 0;  // incl. filtered ones where the aggregation says so
  int64_t num_trained_tokens = 0;
};

// What the trainer reports of one optimizer step. Sums are already divided by global denominators.
struct TrainStats {
  double loss = 0;
  double pg_loss = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double entropy = 0;  // mean over trained tokens, nats
  double ppo_kl = 0;   // mean of old - new
  double pg_clipfrac = 0;
  double kl_loss = 0;
  // Mean KL estimate from the reference over trained tokens, where there is a reference.
  std::optional<double> reference_kl;
  // Of a correction, where there is one, over trained tokens: the trainer-to-sampler ratio before
  // it is bounded (mean, mean distance from 1), the shares outside the bounds and left out.
  struct Correction {
    double ratio = 1, ratio_abs_diff = 0, bounded = 0, rejected = 0;
  };
  std::optional<Correction> correction;
  std::optional<double> opsm_masked;  // share of trained tokens that sequence masking left out
  // Of routing replay, at the sampling weights: the share of (token, layer with experts) whose own
  // top k would be another set of experts; and the train-rollout KL of the rollout's first
  // micro-batch with the trainer's own routing and with the replayed one.
  struct RoutingReplay {
    double differing = 0, own_routing_kl = 0, replayed_kl = 0;
  };
  std::optional<RoutingReplay> routing_replay;
  // Sampler against the trainer's own forward at the sampling weights, before the first optimizer
  // step of the rollout (DESIGN section 5).
  double train_rollout_kl = 0;
  double train_rollout_logprob_abs_diff_mean = 0;
  double train_rollout_logprob_abs_diff_max = 0;
  int64_t num_trained_tokens = 0;
  int64_t num_processed_tokens = 0;  // incl. prompts, after sharing
  int64_t num_micro_batches = 0;
  double sync_s = 0;  // making the new weights visible to the engine
};

}  // namespace orrery

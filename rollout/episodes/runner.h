// Runs groups of episodes on a rollout engine: first turns of a group share their prompt, later
// turns continue from the ids that were sampled. Sampled ids are never tokenised again; a later
// turn's prompt is the earlier turn's ids with the environment's answer appended, so it begins with
// them.
//
// One Run at a time.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orchestrator/interfaces.h"
#include "rollout/episodes/environment.h"
#include "rollout/text/codec.h"

namespace orrery::rollout {

struct RunnerOptions {
  SamplingOptions sampling;
  int64_t max_turns = 1;      // policy turns of an episode
  int64_t max_positions = 0;  // the model's context: a conversation that fills it ends truncated
  bool share_prompt = true;   // false: every episode computes its prompt by itself
  bool return_routed_experts = false;
  int64_t top_logprobs = 0;
};

class Runner : public EpisodeRunner {
 public:
  // engine and codec are borrowed.
  Runner(RolloutEngine* engine, const CheckpointCodec* codec,
         std::unique_ptr<Environment> environment, const RunnerOptions& options);

  // An episode that could not run (its request was rejected, its template refused a turn) comes
  // back as kFailed with the reason; aborted ones as kAborted. The error is for what no episode can
  // be blamed for: a prompt that cannot be encoded.
  absl::Status Run(std::vector<EpisodeGroup>* groups) override;

 private:
  struct Conversation {
    const Prompt* prompt;
    Episode* episode;
    std::vector<Message> messages;  // so far, sampled turns included
    std::vector<int32_t> ids;
    std::shared_ptr<RoutedExperts> routed_experts;  // the sample's, where asked for
  };

  // The experts of the positions that earlier turns did not compute.
  static void TakeRoutedExperts(Conversation* conversation, RoutedExperts experts);
  RolloutEngine::Submission FirstTurn(std::vector<Conversation*> members,
                                      std::vector<int32_t> prompt_ids);
  void TakeTurn(Conversation* conversation, Generation generation);
  // Submits the next turn; false where the episode has ended.
  bool Continue(Conversation* conversation, const std::string& text);
  void End(Conversation* conversation, EpisodeStatus status, std::string why);

  RolloutEngine& engine_;
  const CheckpointCodec& codec_;
  const std::unique_ptr<Environment> environment_;
  const RunnerOptions options_;

  std::mutex mutex_;
  std::condition_variable all_done_;
  size_t running_ = 0;  // guarded by mutex_
};

}  // namespace orrery::rollout

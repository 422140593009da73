#include "rollout/episodes/runner.h"

#include <algorithm>

#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout {

Runner::Runner(RolloutEngine* engine, const CheckpointCodec* codec,
               std::unique_ptr<Environment> environment, const RunnerOptions& options)
    : engine_(*engine), codec_(*codec), environment_(std::move(environment)), options_(options) {}

absl::Status Runner::Run(std::vector<EpisodeGroup>* groups) {
  std::vector<std::vector<int32_t>> prompts;
  for (const EpisodeGroup& group : *groups) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, codec_.EncodePrompt(group.prompt));
    prompts.push_back(std::move(ids));
  }
  std::vector<std::unique_ptr<Conversation>> conversations;
  for (EpisodeGroup& group : *groups) {
    for (Episode& episode : group.episodes) {
      conversations.push_back(std::make_unique<Conversation>());
      *conversations.back() = {&group.prompt, &episode, group.prompt.messages, {}, nullptr};
    }
  }
  {
    std::lock_guard lock(mutex_);
    running_ = conversations.size();
  }
  std::vector<RolloutEngine::Submission> first_turns;
  size_t next = 0;
  for (size_t g = 0; g < groups->size(); ++g) {
    std::vector<Conversation*> members;
    for (Episode& episode : (*groups)[g].episodes) {
      Conversation* member = conversations[next++].get();
      member->ids = prompts[g];
      episode.samples.assign(1, Sample{});
      episode.samples[0].segments.push_back({Author::kPrompt, prompts[g], {}, {}});
      episode.num_turns = 0;
      members.push_back(member);
    }
    if (members.empty()) continue;
    if (options_.share_prompt) {
      first_turns.push_back(FirstTurn(std::move(members), std::move(prompts[g])));
    } else {
      for (Conversation* member : members) first_turns.push_back(FirstTurn({member}, prompts[g]));
    }
  }
  engine_.SubmitAll(std::move(first_turns));
  std::unique_lock lock(mutex_);
  all_done_.wait(lock, [this] { return running_ == 0; });
  return absl::OkStatus();
}

RolloutEngine::Submission Runner::FirstTurn(std::vector<Conversation*> members,
                                            std::vector<int32_t> prompt_ids) {
  GenerationRequest request;
  request.prompt_ids = std::move(prompt_ids);
  request.sampling = options_.sampling;
  request.return_routed_experts = options_.return_routed_experts;
  request.top_logprobs = options_.top_logprobs;
  for (const Conversation* member : members) request.seeds.push_back(member->episode->seed);
  return {std::move(request),
          [this, members = std::move(members)](size_t index, Generation generation) {
            TakeTurn(members[index], std::move(generation));
          }};
}

void Runner::TakeRoutedExperts(Conversation* conversation, RoutedExperts experts) {
  std::shared_ptr<RoutedExperts>& record = conversation->routed_experts;
  if (record == nullptr) {
    record = std::make_shared<RoutedExperts>(std::move(experts));
    conversation->episode->samples[0].routed_experts = record;
    return;
  }
  // Earlier turns' tokens were drawn from what earlier turns computed.
  const int64_t known = record->num_bytes(), of_prompt = experts.prompt_bytes();
  if (known < of_prompt) {
    record->rest.insert(record->rest.end(), experts.prompt->begin() + known, experts.prompt->end());
  }
  const int64_t skipped = std::max<int64_t>(0, known - of_prompt);
  if (skipped < static_cast<int64_t>(experts.rest.size())) {
    record->rest.insert(record->rest.end(), experts.rest.begin() + skipped, experts.rest.end());
  }
}

void Runner::TakeTurn(Conversation* conversation, Generation generation) {
  Episode& episode = *conversation->episode;
  Sample& sample = episode.samples[0];
  sample.finish_reason = generation.finish_reason;
  if (generation.finish_reason == FinishReason::kRejected) {
    return End(conversation, EpisodeStatus::kFailed, std::move(generation.error));
  }
  ++episode.num_turns;
  if (options_.return_routed_experts) {
    TakeRoutedExperts(conversation, std::move(generation.routed_experts));
  }
  conversation->ids.insert(conversation->ids.end(), generation.token_ids.begin(),
                           generation.token_ids.end());
  const std::string text = codec_.Decode(generation.token_ids, /*skip_special=*/true);
  episode.response_text = text;
  sample.segments.push_back({Author::kPolicy, std::move(generation.token_ids),
                             std::move(generation.logprobs), std::move(generation.versions),
                             std::move(generation.top_logprobs)});
  if (generation.finish_reason == FinishReason::kAborted) {
    return End(conversation, EpisodeStatus::kAborted, "aborted");
  }
  if (generation.finish_reason == FinishReason::kStop && Continue(conversation, text)) return;
  if (episode.status == EpisodeStatus::kRunning) End(conversation, EpisodeStatus::kRunning, {});
}

bool Runner::Continue(Conversation* conversation, const std::string& text) {
  Episode& episode = *conversation->episode;
  if (episode.num_turns >= options_.max_turns) return false;
  std::optional<std::vector<Message>> reply = environment_->Reply(text);
  if (!reply) return false;
  const int32_t last = conversation->ids.back();
  const std::vector<int32_t>& stops = options_.sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), last) == stops.end()) return false;
  conversation->messages.push_back({"assistant", text});
  absl::StatusOr<std::vector<int32_t>> delta =
      codec_.EncodeNextTurn(conversation->messages, *reply, last);
  if (!delta.ok()) {
    End(conversation, EpisodeStatus::kFailed, StatusText(delta.status()));
    return true;
  }
  const size_t length = conversation->ids.size() + delta->size();
  if (options_.max_positions > 0 && length >= static_cast<size_t>(options_.max_positions)) {
    episode.samples[0].finish_reason = FinishReason::kLength;
    return false;
  }
  for (Message& message : *reply) conversation->messages.push_back(std::move(message));
  conversation->ids.insert(conversation->ids.end(), delta->begin(), delta->end());
  episode.samples[0].segments.push_back({Author::kTool, *std::move(delta), {}, {}});
  GenerationRequest request;
  request.prompt_ids = conversation->ids;
  request.sampling = options_.sampling;
  request.return_routed_experts = options_.return_routed_experts;
  request.top_logprobs = options_.top_logprobs;
  request.seeds = {HashSeed({episode.seed, static_cast<uint64_t>(episode.num_turns)})};
  engine_.Submit(std::move(request), [this, conversation](size_t, Generation generation) {
    TakeTurn(conversation, std::move(generation));
  });
  return true;
}

void Runner::End(Conversation* conversation, EpisodeStatus status, std::string why) {
  Episode& episode = *conversation->episode;
  episode.status = status;
  if (status == EpisodeStatus::kFailed) episode.outcome = Outcome::Failed(std::move(why));
  std::lock_guard lock(mutex_);
  if (--running_ == 0) all_done_.notify_all();
}

}  // namespace orrery::rollout

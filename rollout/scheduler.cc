#include "rollout/scheduler.h"

#include <algorithm>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "rollout/response_room.h"

namespace orrery::rollout {

using kernels::kBlockTokens;

Scheduler::Scheduler(BlockPool* pool, const SchedulerLimits& limits)
    : pool_(*pool), limits_(limits), swap_(limits.swap_blocks) {
  CHECK_GE(limits.max_running, 1);
  CHECK_GE(limits.prefill_chunk_tokens, 1);
}

absl::Status Scheduler::Admit(const GenerationRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt == 0) return InvalidInput("the prompt has no tokens");
  if (request.seeds.empty()) return InvalidInput("the request asks for no responses");
  if (!request.new_token_limits.empty() &&
      request.new_token_limits.size() != request.seeds.size()) {
    return InvalidInput("{} limits of new tokens for {} responses", request.new_token_limits.size(),
                        request.seeds.size());
  }
  int64_t most = 0;
  for (size_t i = 0; i < request.seeds.size(); ++i) {
    if (request.new_tokens(i) < 1) {
      return InvalidInput("max_new_tokens is {}: a response has at least one token",
                          request.new_tokens(i));
    }
    most = std::max(most, request.new_tokens(i));
  }
  if (static_cast<int64_t>(request.seeds.size()) > limits_.max_draws) {
    return InvalidInput("the request asks for {} responses, a pass draws at most {}",
                        request.seeds.size(), limits_.max_draws);
  }
  if (prompt >= limits_.max_positions) {
    return InvalidInput(
        "the prompt has {} tokens, the model's context {}: shorten it or leave it out "
        "(data.overlong_prompts: skip)",
        prompt, limits_.max_positions);
  }
  const int64_t blocks = BlocksToRunAlone(LongestSequence(prompt, most, limits_.max_positions));
  if (blocks > pool_.num_blocks()) {
    return Exhausted(
        "one response may need {} tokens of KV cache, which holds {}: raise "
        "rollout.kv_tokens or lower sampling.max_new_tokens",
        blocks * kBlockTokens, pool_.num_blocks() * kBlockTokens);
  }
  return absl::OkStatus();
}

Request* Scheduler::Add(RequestId id, GenerationRequest what, RolloutEngine::OnDone on_done) {
  auto request = std::make_unique<Request>();
  request->id = id;
  request->on_done = std::move(on_done);
  request->responses.resize(what.seeds.size());
  for (size_t i = 0; i < request->responses.size(); ++i) request->responses[i].index = i;
  request->num_unfinished = request->responses.size();
  if (what.return_routed_experts) {
    request->prompt_experts = std::make_shared<std::vector<uint8_t>>();
  }
  request->what = std::move(what);
  Request* raw = request.get();
  requests_.emplace(id, std::move(request));
  return raw;
}

Request* Scheduler::Find(RequestId id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

bool Scheduler::Ending(const Request& request, const Response& r) const {
  if (r.num_pending == 0) return false;
  const int64_t tokens = static_cast<int64_t>(r.generation.token_ids.size()) + r.num_pending;
  return tokens >= request.what.new_tokens(r.index) ||
         request.num_positions(r) >= limits_.max_positions;
}

bool Scheduler::Waits(const Request& request, const Response& r) const {
  if (r.finished || r.running) return false;
  // Its first token comes with the prompt's pass.
  return request.num_positions(r) > request.prompt_size() && !Ending(request, r);
}

// Room for the whole known sequence, so that what was admitted can run at once.
int64_t Scheduler::BlocksToFork(const Request& request, const Response& response) const {
  return BlocksFor(request.num_positions(response)) - request.prompt_size() / kBlockTokens;
}

bool Scheduler::HasRoom(int64_t blocks) const {
  return blocks + num_running_ / 4 <= pool_.num_free();
}

bool Scheduler::Extend(std::vector<int32_t>* blocks, int64_t positions) {
  const int64_t wanted = BlocksFor(positions) - static_cast<int64_t>(blocks->size());
  if (wanted > pool_.num_free()) return false;
  for (int64_t i = 0; i < wanted; ++i) blocks->push_back(pool_.Allocate());
  return true;
}

// Backwards: so they are taken again in order.
void Scheduler::Release(std::vector<int32_t>* blocks) {
  for (auto b = blocks->rbegin(); b != blocks->rend(); ++b) pool_.Release(*b);
  blocks->clear();
}

bool Scheduler::Fork(Request* request, Response* response, Copies* copies) {
  const int64_t full = request->prompt_size() / kBlockTokens;
  const int64_t tail = request->prompt_size() % kBlockTokens;
  const int64_t wanted = BlocksToFork(*request, *response);
  if (!HasRoom(wanted)) return false;
  for (int64_t i = 0; i < full; ++i) {
    pool_.Retain(request->prompt_blocks[i]);
    response->blocks.push_back(request->prompt_blocks[i]);
  }
  for (int64_t i = 0; i < wanted; ++i) response->blocks.push_back(pool_.Allocate());
  response->num_computed = std::max(request->prompt_size(), response->saved.num_positions);
  if (!response->saved.empty()) {
    swap_.Restore(std::span(response->blocks).subspan(static_cast<size_t>(full)), &response->saved);
  } else if (tail > 0) {
    copies->push_back(
        {request->prompt_blocks[full], response->blocks[full], static_cast<int32_t>(tail)});
  }
  response->running = true;
  ++num_running_;
  return true;
}

void Scheduler::Drop(Response* response) {
  Release(&response->blocks);
  response->num_computed = 0;
  response->running = false;
  --num_running_;
  ++num_preemptions_;
}

void Scheduler::DropPrompt(Request* request) {
  Release(&request->prompt_blocks);
  request->prompt_computed = 0;
}

void Scheduler::Forget(Request* request) {
  for (Response& r : request->responses) swap_.Forget(&r.saved);
}

// The prompt's full blocks are shared, and are there or come back when the response does. Passes in
// flight write before the copies that follow them read.
void Scheduler::Preempt(const Request& request, Response* response) {
  const int64_t full = request.prompt_size() / kBlockTokens;
  const int64_t count = BlocksFor(response->num_computed) - full;
  // A copy of the prompt's end alone is as quickly made anew.
  if (response->num_computed > request.prompt_size()) {
    const std::span<const int32_t> own =
        std::span(response->blocks).subspan(static_cast<size_t>(full), static_cast<size_t>(count));
    num_swaps_ += swap_.Save(own, response->num_computed, &response->saved);
  }
  Drop(response);
}

Response* Scheduler::PreemptYoungest() {
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    std::vector<Response>& responses = it->second->responses;
    for (auto r = responses.rbegin(); r != responses.rend(); ++r) {
      if (!r->running) continue;
      Preempt(*it->second, &*r);
      return &*r;
    }
  }
  return nullptr;
}

bool Scheduler::DropYoungestPrompt(const Request* but_not) {
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    Request* request = it->second.get();
    if (request == but_not || request->prompt_blocks.empty()) continue;
    const bool in_use = std::any_of(request->responses.begin(), request->responses.end(),
                                    [](const Response& r) { return r.running; });
    if (in_use) continue;
    PutPromptAside(request);
    return true;
  }
  return false;
}

void Scheduler::PutPromptAside(Request* request) {
  const auto count = static_cast<size_t>(BlocksFor(request->prompt_computed));
  const std::span<const int32_t> computed = std::span(request->prompt_blocks).first(count);
  if (!swap_.Save(computed, request->prompt_computed, &request->prompt_saved) &&
      request->prompt_epoch != epoch_) {
    Forget(request);  // it will be another prompt's keys and values that they would go on from
  }
  DropPrompt(request);
}

bool Scheduler::RestorePrompt(Request* request) {
  const int64_t blocks = BlocksFor(request->prompt_size());
  int64_t follows = 1;  // as where a prompt is computed (SchedulePrompt)
  if (request->prompt_saved.num_positions == request->prompt_size()) {
    const auto first = std::find_if(request->responses.begin(), request->responses.end(),
                                    [&](const Response& r) { return Waits(*request, r); });
    if (first == request->responses.end()) return true;  // nobody needs it yet
    follows = BlocksToFork(*request, *first);
  }
  if (!HasRoom(blocks + follows)) return false;
  CHECK(Extend(&request->prompt_blocks, request->prompt_size()));
  request->prompt_computed = request->prompt_saved.num_positions;
  swap_.Restore(request->prompt_blocks, &request->prompt_saved);
  return true;
}

void Scheduler::WeightsChanged() {
  ++epoch_;
  for (auto& [id, request] : requests_) {
    const int64_t kept = std::max(request->prompt_computed, request->prompt_saved.num_positions);
    if (kept < request->prompt_size()) Forget(request.get());
  }
}

void Scheduler::DropAll() {
  for (auto& [id, request] : requests_) {
    for (Response& r : request->responses) {
      if (r.running) Drop(&r);
    }
    Forget(request.get());
    swap_.Forget(&request->prompt_saved);
    DropPrompt(request.get());
  }
  CHECK_EQ(pool_.num_free(), pool_.num_blocks());
  CHECK_EQ(swap_.num_free(), swap_.num_blocks());
}

void Scheduler::ScheduleRunning(std::vector<Work>* pass, int64_t* budget) {
  for (auto& [id, request] : requests_) {
    for (Response& r : request->responses) {
      if (!r.running || Ending(*request, r)) continue;
      const int64_t known = request->num_positions(r);
      while (!Extend(&r.blocks, known)) {
        if (DropYoungestPrompt(request.get())) continue;
        if (PreemptYoungest() == &r) break;
      }
      if (!r.running) continue;
      // One token where it is decoding, more where it was preempted and catches up.
      int64_t count = known - r.num_computed;
      if (count > 1) {
        count = std::min(count, std::max<int64_t>(*budget, 1));
        *budget -= count;
      }
      pass->push_back({request.get(), &r, r.num_computed, count, r.num_computed + count == known});
    }
  }
  // A later response may have preempted an earlier entry of the pass.
  std::erase_if(*pass, [](const Work& w) { return !w.response->running; });
}

bool Scheduler::SchedulePending(Request* request, std::vector<Work>* pass, int64_t* budget,
                                Copies* copies) {
  for (Response& r : request->responses) {
    if (num_running_ >= limits_.max_running) return true;
    if (!Waits(*request, r)) continue;
    const int64_t computed = std::max(request->prompt_size(), r.saved.num_positions);
    if (*budget <= 0 && request->num_positions(r) > computed + 1) continue;
    if (!Fork(request, &r, copies)) return false;
    const int64_t left = request->num_positions(r) - r.num_computed;
    const int64_t count = left == 1 ? 1 : std::min(left, *budget);
    if (left > 1) *budget -= count;
    pass->push_back({request, &r, r.num_computed, count, count == left});
  }
  return true;
}

bool Scheduler::SchedulePrompt(Request* request, std::vector<Work>* pass, int64_t* budget,
                               int64_t* draws) {
  if (*budget <= 0) return true;
  const int64_t left = request->prompt_size() - request->prompt_computed;
  const int64_t count = std::min(left, *budget);
  const auto responses = static_cast<int64_t>(request->responses.size());
  if (count == left && *draws > 0 && *draws + responses > limits_.max_draws) return true;
  // The next decode steps need room too: a prompt starts only where its responses can follow.
  const int64_t needed =
      BlocksFor(request->prompt_size()) - static_cast<int64_t>(request->prompt_blocks.size());
  if (needed + 1 > pool_.num_free()) return false;
  CHECK(Extend(&request->prompt_blocks, request->prompt_size()));
  if (request->prompt_computed == 0) request->prompt_epoch = epoch_;
  *budget -= count;
  if (count == left) *draws += responses;
  pass->push_back({request, nullptr, request->prompt_computed, count, count == left});
  return true;
}

void Scheduler::ScheduleWaiting(std::vector<Work>* pass, int64_t* budget, Copies* copies) {
  int64_t draws = 0;  // of prompts; running responses have theirs by max_running
  // Who finds no room ends it: the younger must not take the blocks that an older one waits for.
  for (auto& [id, request] : requests_) {
    if (num_running_ >= limits_.max_running) return;
    if (!request->prompt_saved.empty() && !RestorePrompt(request.get())) return;
    if (!request->prompt_saved.empty()) continue;
    const bool had_room = request->prompt_ready()
                              ? SchedulePending(request.get(), pass, budget, copies)
                              : SchedulePrompt(request.get(), pass, budget, &draws);
    if (!had_room) return;
  }
}

std::vector<Work> Scheduler::Next(Copies* copies, bool passes_pending) {
  std::vector<Work> pass;
  copies->clear();
  int64_t budget = limits_.prefill_chunk_tokens;
  ScheduleRunning(&pass, &budget);
  ScheduleWaiting(&pass, &budget, copies);
  while (pass.empty() && !requests_.empty() && !passes_pending) {
    // Prompts without running responses hold all blocks: the youngest makes room for the oldest.
    CHECK(DropYoungestPrompt(requests_.begin()->second.get()))
        << "an admitted request must be able to run alone";
    ScheduleWaiting(&pass, &budget, copies);
  }
  return pass;
}

void Scheduler::Done(std::span<const Work> pass) {
  for (const Work& w : pass) {
    if (w.response != nullptr) {
      w.response->num_computed = w.first_position + w.count;
    } else {
      w.request->prompt_computed = w.first_position + w.count;
    }
  }
}

bool Scheduler::Finish(Request* request, Response* response) {
  CHECK(!response->finished);
  if (response->running) {
    --num_running_;
    response->running = false;
  }
  Release(&response->blocks);
  swap_.Forget(&response->saved);
  response->finished = true;
  if (--request->num_unfinished > 0) return false;
  Release(&request->prompt_blocks);
  swap_.Forget(&request->prompt_saved);
  requests_.erase(request->id);
  return true;
}

}  // namespace orrery::rollout

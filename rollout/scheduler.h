// Which tokens the next forward pass computes. The scheduler owns requests, their responses and the
// KV blocks they hold; it knows nothing of models and threads.
//
//   prompt:    waiting -> computed in chunks -> held until the last response is done
//   response:  pending -> running (holds blocks) -> finished
//                  ^----------'  preempted: blocks given back, tokens kept
//
// A prompt's full blocks are shared by its responses; the block in which the prompt ends is copied
// for each. What a preempted response holds alone goes to the host's memory where there is room
// (swap_blocks), and comes back bit for bit; so does a prompt that nobody runs on. Else it is
// computed again later, and comes out bitwise equal where numerics are exact, so nothing sampled
// changes. Oldest first everywhere; the youngest is preempted.
//
// New weights leave computed keys and values as they are, in either memory. But what is computed
// anew is of the new weights: a response whose prompt was, is too (WeightsChanged).
//
// The engine's thread alone calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "orchestrator/interfaces.h"
#include "rollout/block_pool.h"
#include "rollout/swap_space.h"

namespace orrery::rollout {

struct SchedulerLimits {
  int64_t max_running = 256;           // responses with blocks
  int64_t prefill_chunk_tokens = 512;  // prompt tokens (and recomputed ones) a step
  int64_t max_positions = 0;           // of the model
  int64_t max_draws = 1 << 20;         // first tokens a pass
  int64_t swap_blocks = 0;             // of the host's memory for what is preempted; 0: no swap
};

struct Response {
  size_t index = 0;  // in its request
  Generation generation;
  std::vector<int32_t> blocks;
  int64_t num_computed = 0;  // positions with keys and values, once the launched passes ran
  SavedBlocks saved;         // while swapped out: those behind the prompt's full blocks
  // Tokens that launched passes draw and nobody has seen yet (0 or 1), and which draw of its pass.
  int64_t num_pending = 0;
  int32_t pending_draw = -1;
  bool running = false;
  bool finished = false;
};

struct Request {
  RequestId id = 0;
  GenerationRequest what;
  RolloutEngine::OnDone on_done;
  std::vector<int32_t> prompt_blocks;
  int64_t prompt_computed = 0;
  int64_t prompt_epoch = 0;  // Scheduler's count of weights when the prompt was begun
  SavedBlocks prompt_saved;  // while swapped out
  std::shared_ptr<std::vector<uint8_t>> prompt_experts;  // where asked for (RoutedExperts::prompt)
  std::vector<Response> responses;
  size_t num_unfinished = 0;

  int64_t prompt_size() const { return static_cast<int64_t>(what.prompt_ids.size()); }
  bool prompt_ready() const { return prompt_computed == prompt_size(); }
  // Prompt and what was sampled so far.
  int64_t num_known(const Response& r) const {
    return prompt_size() + static_cast<int64_t>(r.generation.token_ids.size());
  }
  // And what is being sampled.
  int64_t num_positions(const Response& r) const { return num_known(r) + r.num_pending; }
  int32_t TokenAt(const Response& r, int64_t position) const {
    return position < prompt_size() ? what.prompt_ids[position]
                                    : r.generation.token_ids[position - prompt_size()];
  }
};

// Consecutive positions of a prompt or a response that the next pass computes.
struct Work {
  Request* request = nullptr;
  Response* response = nullptr;  // null: the prompt
  int64_t first_position = 0;
  int64_t count = 0;
  bool samples =
      false;  // the last position's logits give a token (of a prompt: every response's first)

  std::span<const int32_t> blocks() const {
    return response != nullptr ? response->blocks : request->prompt_blocks;
  }
};

// Blocks to copy (all layers) before the pass.
using Copies = std::vector<kernels::KvCopy>;

class Scheduler {
 public:
  Scheduler(BlockPool* pool, const SchedulerLimits& limits);

  // Ok, or why it can never be served.
  absl::Status Admit(const GenerationRequest& request) const;
  Request* Add(RequestId id, GenerationRequest request, RolloutEngine::OnDone on_done);
  Request* Find(RequestId id);
  bool empty() const { return requests_.empty(); }
  // REQUIRES: not empty.
  RequestId oldest() const { return requests_.begin()->first; }

  // The next pass. Empty where there are no requests, or with passes_pending: until the tokens of a
  // launched pass are known.
  std::vector<Work> Next(Copies* copies, bool passes_pending = false);
  // The pass was run, or launched: its positions have keys and values for whatever runs after it.
  void Done(std::span<const Work> pass);
  // What moves to the host and back: behind all passes launched before the last Next, and before
  // its copies and its pass.
  std::vector<KvSwap> TakeSwaps() { return swap_.TakeSwaps(); }
  // Passes compute with new weights from now on.
  void WeightsChanged();
  // Gives all blocks back, the host's among them: what was computed will be computed again.
  // REQUIRES: no pass is pending.
  void DropAll();
  // Gives back a finished response's blocks; the request goes when it was the last.
  // Returns true where the request is gone.
  bool Finish(Request* request, Response* response);

  int64_t num_running() const { return num_running_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_swaps() const { return num_swaps_; }  // of the preemptions, those without recompute
  const SwapSpace& swap() const { return swap_; }

 private:
  // Whether the token being sampled is its last for certain.
  bool Ending(const Request& request, const Response& response) const;
  // Whether it has no blocks and wants to go on.
  bool Waits(const Request& request, const Response& response) const;
  // Blocks that a response which waits takes from the pool, beside the prompt's.
  int64_t BlocksToFork(const Request& request, const Response& response) const;
  // Whether so many are free and some more for those that run already: what is admitted too early
  // is preempted again.
  bool HasRoom(int64_t blocks) const;
  bool Extend(std::vector<int32_t>* blocks, int64_t positions);
  bool Fork(Request* request, Response* response, Copies* copies);
  void Release(std::vector<int32_t>* blocks);
  // Blocks are given back, and nothing is saved.
  void Drop(Response* response);
  void DropPrompt(Request* request);
  void Forget(Request* request);  // what is saved of its responses
  void Preempt(const Request& request, Response* response);
  Response* PreemptYoungest();
  bool DropYoungestPrompt(const Request* but_not);
  // Gives the prompt up, to the host where there is room.
  void PutPromptAside(Request* request);
  // False where there is no room.
  bool RestorePrompt(Request* request);
  void ScheduleRunning(std::vector<Work>* pass, int64_t* budget);
  void ScheduleWaiting(std::vector<Work>* pass, int64_t* budget, Copies* copies);
  // False where there is no room.
  bool SchedulePending(Request* request, std::vector<Work>* pass, int64_t* budget, Copies* copies);
  bool SchedulePrompt(Request* request, std::vector<Work>* pass, int64_t* budget, int64_t* draws);

  BlockPool& pool_;
  const SchedulerLimits limits_;
  std::map<RequestId, std::unique_ptr<Request>> requests_;  // by age
  int64_t num_running_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t num_swaps_ = 0;
  SwapSpace swap_;
  int64_t epoch_ = 0;  // weights so far
};

}  // namespace orrery::rollout

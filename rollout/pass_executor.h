// Who runs the passes that the scheduler plans: the forward pass and the draws. The engine knows
// neither the device nor where weights, keys and values lie.
//
//   Launch(pass n)  Launch(pass n + 1)  Collect() -> draws of n  Launch(n + 2) ...
//
// With a depth of two the engine launches a pass before it has seen the tokens of the one before;
// the executor feeds them on. The engine's thread alone calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/sampler/sampler.h"
#include "kernels/sampler/top_logprobs.h"
#include "rollout/scheduler.h"
#include "trainer/model/model_spec.h"
#include "trainer/model/weight_store.h"

namespace orrery::rollout {

// A token to draw from the last position of a Work.
struct Draw {
  size_t work = 0;  // index in the pass
  Request* request = nullptr;
  Response* response = nullptr;
};

// What a pass gives back.
struct PassResult {
  std::vector<kernels::SampleResult> samples;  // one a draw, in order
  // Where a Work of the pass asked for them: the experts of all its rows, Work after Work,
  // [rows, layers with experts, top_k] ids as RoutedExperts has them. Else empty.
  std::vector<uint8_t> routed_experts;
  // [draws, num_top] where one of them asked for the most likely tokens; num_top: at least what it
  // asked for.
  std::vector<kernels::TopLogprob> top_logprobs;
  int64_t num_top = 0;
};

// The most that a draw asks for.
int64_t MostTopLogprobs(std::span<const Draw> draws);

// Whether somebody in the pass asked for the experts.
bool WantsRoutedExperts(std::span<const Work> pass);

// Ok where the store holds this version, whole.
absl::Status CheckHolds(const model::WeightStore& store, PolicyVersion version);

class PassExecutor {
 public:
  virtual ~PassExecutor() = default;

  virtual const model::ModelSpec& spec() const = 0;
  virtual BlockPool* pool() = 0;

  // The weights that passes read from now on.
  virtual PolicyVersion version() const = 0;
  // Weights of this version are in place: derived copies are made. Nothing is in flight.
  virtual absl::Status TakeWeights(PolicyVersion version) = 0;

  // Frees what memory it can, keys and values among it, until Wake brings the weights back to where
  // they were. Nothing is in flight, no block is in use.
  virtual void Sleep() {}
  virtual void Wake() {}

  // Ok, or why this executor can never serve the request.
  virtual absl::Status Admit(const GenerationRequest& request) const = 0;

  // Blocks to the host's memory (SchedulerLimits::swap_blocks of it) and back, in order, behind the
  // passes launched before and ahead of the next.
  virtual void Swap(std::span<const KvSwap> swaps);
  // Of all layers' keys and values.
  virtual int64_t BlockBytes() const { return 0; }

  // Passes that may be in flight.
  virtual int depth() const = 0;
  // Pointers are valid during the call. REQUIRES: fewer than depth() in flight.
  virtual void Launch(std::span<const Work> pass, std::span<const Draw> draws,
                      const Copies& copies) = 0;
  // Of the oldest pass in flight. Waits for it.
  virtual PassResult Collect() = 0;
};

}  // namespace orrery::rollout

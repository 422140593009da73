// An executor without a model: token `index` of a response is hash(seed, index) % 50, whatever is
// computed. What a pass does to keys and values is for those who derive from it.
#pragma once

#include <deque>
#include <span>
#include <utility>

#include "orchestrator/base/hash.h"
#include "rollout/pass_executor.h"

namespace orrery::fakes {

class MadeUpExecutor : public rollout::PassExecutor {
 public:
  MadeUpExecutor(int depth, int64_t blocks) : depth_(depth), pool_(blocks) {
    spec_.vocab_size = 50;
  }
  const model::ModelSpec& spec() const override { return spec_; }
  rollout::BlockPool* pool() override { return &pool_; }
  PolicyVersion version() const override { return version_; }
  absl::Status TakeWeights(PolicyVersion version) override {
    version_ = version;
    return absl::OkStatus();
  }
  absl::Status Admit(const GenerationRequest&) const override { return absl::OkStatus(); }
  int depth() const override { return depth_; }
  rollout::PassResult Collect() override {
    rollout::PassResult result = std::move(in_flight_.front());
    in_flight_.pop_front();
    return result;
  }

 protected:
  static int32_t Token(const rollout::Request& request, const rollout::Response& response,
                       int64_t index) {
    return static_cast<int32_t>(
        HashSeed({request.what.seeds[response.index], static_cast<uint64_t>(index)}) % 50);
  }
  // Draws, and the pass is under way with what `result` has already.
  void Finish(std::span<const rollout::Draw> draws, rollout::PassResult result = {}) {
    for (const rollout::Draw& d : draws) {
      kernels::SampleResult sample;
      sample.token_id = Token(
          *d.request, *d.response,
          static_cast<int64_t>(d.response->generation.token_ids.size()) + d.response->num_pending);
      sample.logprob = -1;
      result.samples.push_back(sample);
    }
    in_flight_.push_back(std::move(result));
  }

  model::ModelSpec spec_;
  std::deque<rollout::PassResult> in_flight_;

 private:
  const int depth_;
  rollout::BlockPool pool_;
  PolicyVersion version_ = 1;
};

}  // namespace orrery::fakes

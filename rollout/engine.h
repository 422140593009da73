// The embedded rollout engine on the CPU: one thread that schedules, runs the forward pass, samples
// and delivers. It samples from a WeightStore that a trainer may write between BeginUpdate and
// Commit.
//
// A pass is cut into shards of rows. With a small model each shard runs the whole forward pass on
// one thread (one meeting point a pass); a large model runs one shard whose operators use all
// threads. Neither changes a bit of any result.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "kernels/sampler/sampler.h"
#include "orchestrator/interfaces.h"
#include "rollout/inference_ops.h"
#include "rollout/scheduler.h"

namespace orrery::rollout {

struct EngineOptions {
  SchedulerLimits scheduler;
  int64_t kv_blocks = 0;
  // Up to this many bytes of weights a core holds them close: shards run the whole pass alone.
  int64_t sharded_model_bytes = 16 << 20;
};

class Engine : public RolloutEngine, public WeightReceiver {
 public:
  // Borrowed: weights (committed), and codec, which stop strings need (may be null without them).
  Engine(const model::WeightStore* weights, const TextCodec* codec, const EngineOptions& options);
  // Requests not yet finished are delivered as aborted.
  ~Engine() override;

  RequestId Submit(GenerationRequest request, OnDone on_done) override;
  void Abort(RequestId id) override;
  void Pause() override;
  void Resume() override;
  PolicyVersion version() const override { return weights_.version(); }
  EngineStats stats() const override;

  // Pauses until Commit. Running responses go on with the new weights afterwards; every token says
  // which ones it came from.
  absl::Status BeginUpdate(PolicyVersion version) override;
  absl::Status Commit(PolicyVersion version) override;

 private:
  struct Command {
    RequestId id;
    GenerationRequest request;  // empty seeds: abort
    OnDone on_done;
  };
  // Rows of one shard, ready for Forward.
  struct Shard {
    std::vector<Work> work;
    std::vector<int32_t> token_ids, positions, slots;
    std::vector<kernels::SequenceSpan> spans;
    std::vector<int32_t> logit_rows;                          // one a sampling Work
    std::vector<std::vector<kernels::SampleResult>> results;  // one a sampling Work; prompts: n
    std::vector<float> scratch;
  };
  struct Delivery {
    OnDone on_done;
    size_t index;
    Generation generation;
  };

  void Loop();
  bool WaitForWork();
  void TakeCommands();
  absl::Status Admit(const GenerationRequest& request) const;
  void AbortAll();
  void HandleAbort(RequestId id);
  void RunPass();
  std::vector<Shard> CutIntoShards(std::vector<Work> pass) const;
  void FillShard(Shard* shard) const;
  void RunShard(Shard* shard, InferenceOps* ops) const;
  kernels::SampleResult Sample(const Work& work, const Response& response,
                               std::span<const float> logits, std::vector<float>* scratch) const;
  void Take(const Work& work, Response* response, const kernels::SampleResult& result);
  bool HitsStopString(const Request& request, const Response& response) const;
  void FinishResponse(Request* request, Response* response, FinishReason reason,
                      std::string error = {});
  void Deliver();

  const model::WeightStore& weights_;
  const TextCodec* codec_;
  const EngineOptions options_;
  const kernels::RopeTable rope_;
  KvCache cache_;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<InferenceOps>> ops_;  // one a shard
  std::vector<Delivery> deliveries_;                // of the engine's thread

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Command> commands_;  // guarded by mutex_, as all below
  RequestId next_id_ = 1;
  int pauses_ = 0;
  bool in_pass_ = false;
  bool stopping_ = false;
  bool refusing_ = false;  // a transaction was begun and not committed
  EngineStats stats_;
  std::thread thread_;
};

}  // namespace orrery::rollout

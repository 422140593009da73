// The embedded rollout engine: one thread that schedules, hands passes to an executor (on the CPU
// or a GPU), takes the tokens back and delivers. With an executor of depth two it plans a pass
// while the one before still runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "orchestrator/interfaces.h"
#include "rollout/pass_executor.h"
#include "rollout/scheduler.h"
#include "trainer/model/weight_store.h"

namespace orrery::rollout {

struct EngineOptions {
  SchedulerLimits scheduler;
  int64_t kv_blocks = 0;
  // Up to this many bytes of weights a core holds them close: shards run the whole pass alone.
  int64_t sharded_model_bytes = 16 << 20;
};

class Engine : public RolloutEngine, public WeightReceiver {
 public:
  // codec, borrowed, is what stop strings need (may be null without them).
  Engine(std::unique_ptr<PassExecutor> executor, const TextCodec* codec,
         const SchedulerLimits& limits);
  // On the CPU. Borrowed: weights (committed), and codec.
  Engine(const model::WeightStore* weights, const TextCodec* codec, const EngineOptions& options);
  // Requests not yet finished are delivered as aborted.
  ~Engine() override;

  std::vector<RequestId> SubmitAll(std::vector<Submission> submissions) override;
  void Abort(RequestId id) override;
  void Pause() override;
  void Resume() override;
  PolicyVersion version() const override { return executor_->version(); }
  EngineStats stats() const override;

  // Pauses until Commit. Running responses go on with the new weights afterwards; every token says
  // which ones it came from.
  absl::Status BeginUpdate(PolicyVersion version) override;
  absl::Status Commit(PolicyVersion version) override;

  // Between the two nothing runs and the memory of keys, values and weights is free; requests are
  // kept, and their responses end as if nothing had been. Who else reads or writes the same weights
  // must not meanwhile. FailedPrecondition inside an update, or out of turn. Not from a callback.
  absl::Status Sleep();
  absl::Status Wake();

 private:
  struct Command {
    RequestId id;
    GenerationRequest request;  // empty seeds: abort
    OnDone on_done;
  };
  // A token that a pass in flight draws. The response may be gone when it comes.
  struct PendingDraw {
    RequestId request;
    size_t response;
  };
  // Rows of a pass in flight whose experts somebody asked for.
  struct PendingRows {
    RequestId request;
    int64_t response;  // -1: of the prompt
    int64_t first_position, count;
    int64_t first_row;  // of the pass
  };
  struct InFlight {
    std::vector<PendingDraw> draws;
    std::vector<PendingRows> rows;
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
  bool Pausing() const;
  void AbortAll();
  void HandleAbort(RequestId id);
  // Launches the next pass where there is one, and takes the oldest's tokens where it must.
  void RunPass();
  void LaunchPass(std::span<const Work> pass, const Copies& copies);
  void CollectPass();
  void Drain();
  std::vector<Draw> DrawsOf(std::span<const Work> pass) const;
  std::vector<PendingRows> RowsOf(std::span<const Work> pass) const;
  void TakeRoutedExperts(const PendingRows& rows, std::span<const uint8_t> experts);
  void Count(std::span<const Work> pass);
  void Swap();
  void Take(Request* request, Response* response, const kernels::SampleResult& result,
            std::span<const kernels::TopLogprob> top);
  bool HitsStopString(const Request& request, const Response& response) const;
  void FinishResponse(Request* request, Response* response, FinishReason reason,
                      std::string error = {});
  void Deliver();

  const std::unique_ptr<PassExecutor> executor_;
  const TextCodec* codec_;
  const SchedulerLimits limits_;
  Scheduler scheduler_;
  std::deque<InFlight> in_flight_;    // of the engine's thread
  std::vector<Delivery> deliveries_;  // of the engine's thread

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Command> commands_;  // guarded by mutex_, as all below
  RequestId next_id_ = 1;
  int pauses_ = 0;
  bool in_pass_ = false;
  bool stopping_ = false;
  bool refusing_ = false;  // a transaction was begun and not committed
  bool asleep_ = false;
  EngineStats stats_;
  std::thread thread_;
};

}  // namespace orrery::rollout

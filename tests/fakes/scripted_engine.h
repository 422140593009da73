// A rollout engine that says what a test wrote down: no model, no scheduler. Responses come from a
// thread of its own, in an order that a seed shuffles, as those of a real engine come in no order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "orchestrator/base/hash.h"
#include "orchestrator/interfaces.h"

namespace orrery::fakes {

class ScriptedEngine : public RolloutEngine {
 public:
  using Script = std::function<Generation(const GenerationRequest& request, size_t index)>;

  explicit ScriptedEngine(Script script, uint64_t seed = 1)
      : script_(std::move(script)), random_(seed), thread_([this] { Serve(); }) {}
  ~ScriptedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  RequestId Submit(GenerationRequest request, OnDone on_done) override {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    const auto shared = std::make_shared<std::pair<GenerationRequest, OnDone>>(std::move(request),
                                                                               std::move(on_done));
    for (size_t i = 0; i < shared->first.seeds.size(); ++i) waiting_.push_back({shared, i});
    changed_.notify_all();
    return requests_.size();
  }
  void Abort(RequestId) override {}
  void Pause() override {}
  void Resume() override {}
  PolicyVersion version() const override { return 3; }
  EngineStats stats() const override { return {}; }

  // In the order they came.
  std::vector<GenerationRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  struct Waiting {
    std::shared_ptr<std::pair<GenerationRequest, OnDone>> request;
    size_t index;
  };

  void Serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const size_t at = random_.Below(waiting_.size());
      const Waiting next = waiting_[at];
      waiting_.erase(waiting_.begin() + static_cast<int64_t>(at));
      lock.unlock();
      next.request->second(next.index, script_(next.request->first, next.index));
      lock.lock();
    }
  }

  const Script script_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerationRequest> requests_;  // guarded by mutex_, as all below
  std::deque<Waiting> waiting_;
  RandomStream random_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orrery::fakes

// A rollout engine that says what a test wrote down: no model, no scheduler. Responses come from a
// thread of its own, in an order that a seed shuffles, as those of a real engine come in no order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
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

  std::vector<RequestId> SubmitAll(std::vector<Submission> submissions) override {
    const std::lock_guard lock(mutex_);
    std::vector<RequestId> ids;
    for (Submission& submission : submissions) {
      requests_.push_back(submission.request);
      ids.push_back(requests_.size());
      const auto shared = std::make_shared<Submission>(std::move(submission));
      for (size_t i = 0; i < shared->request.seeds.size(); ++i) waiting_.push_back({shared, i});
    }
    batch_sizes_.push_back(ids.size());
    changed_.notify_all();
    return ids;
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
  // How many requests each submission held.
  std::vector<size_t> batch_sizes() const {
    const std::lock_guard lock(mutex_);
    return batch_sizes_;
  }

 private:
  struct Waiting {
    std::shared_ptr<Submission> submission;
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
      next.submission->on_done(next.index, script_(next.submission->request, next.index));
      lock.lock();
    }
  }

  const Script script_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerationRequest> requests_;  // guarded by mutex_, as all below
  std::vector<size_t> batch_sizes_;
  std::deque<Waiting> waiting_;
  RandomStream random_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orrery::fakes

// Blank sandboxes: namespaces, control groups, kernel file systems and init are there before
// anybody asks, and an image makes a sandbox of one. Most of a start's time goes into what no image
// shows: the network namespace above all. Each is used for one sandbox and never again.
//
// Blanks are made for limits and a host name that were asked for twice, so that one sandbox alone
// brings no others about; how many wait is the same for each such kind. Threads refill while nobody
// asks, and otherwise only what is less than half full: making one takes a processor for longer
// than using one. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sandbox/host/local_sandbox.h"
#include "sandbox/host/resources.h"

namespace orrery::sandbox {

class BlankPool {
 public:
  static constexpr size_t kMostKinds = 2;

  // `resources` outlives it. per_kind 0: an empty pool.
  BlankPool(HostResources* resources, int per_kind);
  ~BlankPool();  // destroys what is left

  // Null where none waits, or the image needs what no blank has.
  std::unique_ptr<LocalSandbox> Take(const SandboxOptions& options);
  int64_t ready();

 private:
  using Clock = std::chrono::steady_clock;
  struct Kind {
    SandboxOptions options;  // limits and host name
    bool wanted = false;     // asked for twice
    bool filling = false;    // until it is full
    Clock::time_point asked;
    size_t making = 0;
    std::list<std::unique_ptr<LocalSandbox>> ready;
  };
  using Sandboxes = std::list<std::unique_ptr<LocalSandbox>>;

  std::list<Kind>::iterator Find(const SandboxOptions& options);
  void Refill();
  bool NextToMake(SandboxOptions* options);
  bool IsFull(const Kind& kind) const { return kind.ready.size() + kind.making >= per_kind_; }
  bool IsToFill(Kind& kind) const;
  void WaitForWork(std::unique_lock<std::mutex>& lock);
  void Add(std::unique_ptr<LocalSandbox> sandbox, const SandboxOptions& options);

  HostResources* const resources_;
  const size_t per_kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Kind> kinds_;  // latest asked for first
  bool stopping_ = false, failing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace orrery::sandbox

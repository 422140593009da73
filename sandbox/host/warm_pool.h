// Sandboxes that are ready before anybody asks: for each of the images and limits that were asked
// for lately, some that wait. They count as free room: whoever finds no room takes it from them.
//
// A thread refills. Entries whose layers were replaced, or whose init has died, are never given.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "sandbox/host/local_sandbox.h"
#include "sandbox/host/resources.h"

namespace orrery::sandbox {

class WarmPool {
 public:
  static constexpr size_t kMostKinds = 16;

  // `resources` outlives it. per_kind 0: an empty pool.
  WarmPool(HostResources* resources, int per_kind);
  ~WarmPool();  // destroys what is left

  // Null where none is ready; more are made from then on.
  std::unique_ptr<LocalSandbox> Take(const SandboxOptions& options);
  // Between these two nothing is made: somebody waits for room.
  void BeginPressure();
  void EndPressure();
  // Destroys the one that has waited longest; false where there is none.
  bool EvictOne();
  // What its entries take of the host.
  HostLoad load() const;

 private:
  using LayerIds = std::vector<std::pair<dev_t, ino_t>>;
  struct Entry {
    std::unique_ptr<LocalSandbox> sandbox;
    LayerIds layers;
  };
  struct Kind {
    SandboxOptions options;
    std::list<Entry> ready;
  };

  static LayerIds IdsOf(const PreparedImage& image);
  static bool Same(const SandboxOptions& a, const SandboxOptions& b);
  std::list<Kind>::iterator Find(const SandboxOptions& options);
  void Refill();
  bool NextToMake(SandboxOptions* options);
  void Add(std::unique_ptr<LocalSandbox> sandbox);
  void Trim(std::vector<Entry>* gone);

  HostResources* const resources_;
  const size_t per_kind_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Kind> kinds_;  // latest asked for first
  int pressure_ = 0;
  bool stopping_ = false, failing_ = false;
  std::thread thread_;
};

}  // namespace orrery::sandbox

// What the clients of a service have. A session ends once; whatever is added afterwards is
// destroyed at once. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/remote/service.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox::remote {

class Session {
 public:
  // False (and nothing is kept) where the session has ended.
  bool Add(std::shared_ptr<Sandbox> sandbox, std::shared_ptr<const void> image);
  bool Add(uint64_t id, std::shared_ptr<const Snapshot> snapshot);
  // Null where there is none.
  std::shared_ptr<Sandbox> FindSandbox(const std::string& id) const;
  std::shared_ptr<const Snapshot> FindSnapshot(uint64_t id) const;
  // Calls that use it end first, by its destruction.
  absl::Status Destroy(const std::string& id);
  void Release(uint64_t snapshot);
  void End();  // destroys all
  size_t num_sandboxes() const;

 private:
  struct Held {
    std::shared_ptr<const void> image;  // outlives the sandbox
    std::shared_ptr<Sandbox> sandbox;
  };
  mutable std::mutex mutex_;
  bool ended_ = false;
  std::map<std::string, Held> sandboxes_;
  std::map<uint64_t, std::shared_ptr<const Snapshot>> snapshots_;
};

class Sessions {
 public:
  // A new one under a name that cannot be guessed.
  std::string Begin();
  void End(const std::string& name);
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& name) const;
  size_t num_sandboxes() const;
  uint64_t NextSnapshot() { return next_snapshot_++; }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Session>> sessions_;
  std::atomic<uint64_t> next_snapshot_{1};
};

}  // namespace orrery::sandbox::remote

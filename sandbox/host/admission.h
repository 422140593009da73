// Who may begin: sandboxes together never ask for more than the host gives. First come, first
// served: a large request at the front is not overtaken by small ones, and the queue has a bound.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct Share {
  int64_t memory_bytes = 0;
  double cpus = 0;
  int64_t disk_bytes = 0;  // of a host whose uppers lie on a disk
};
Share ShareOf(const Limits& limits);
// An error that names the first limit that is no limit: a request may come from another machine.
absl::Status CheckLimits(const Limits& limits);

class Admission {
 public:
  Admission(int64_t max_sandboxes, Share total, int64_t max_waiting)
      : max_sandboxes_(max_sandboxes), total_(total), max_waiting_(max_waiting) {}

  // Waits for room. Exhausted where it could never fit or too many wait.
  absl::Status Enter(const Share& share);
  // False where there is no room, or others wait for it.
  bool TryEnter(const Share& share);
  void Leave(const Share& share);
  // Wakes all that wait with an error, and lets nobody in any more.
  void Close();
  HostLoad load() const;

 private:
  bool Fits(const Share& share) const;
  void Add(const Share& share);

  const int64_t max_sandboxes_;
  const Share total_;
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_inside_ = 0;
  Share inside_;
  uint64_t next_ticket_ = 0, serving_ = 0;
  bool closed_ = false;
};

}  // namespace orrery::sandbox

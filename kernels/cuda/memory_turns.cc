#include "kernels/cuda/memory_turns.h"

#include <utility>

#include "orchestrator/base/stopwatch.h"

namespace orrery::kernels::cuda {

void MemoryTurns::Register(User user, Calls calls) {
  const std::lock_guard lock(mutex_);
  calls_[user] = std::move(calls);
  if (holder_ == user) holder_ = -1;
}

std::unique_lock<std::mutex> MemoryTurns::Take(User user) {
  std::unique_lock lock(mutex_);
  if (holder_ == user) return lock;
  Stopwatch watch;
  if (holder_ >= 0 && calls_[holder_].give_back) calls_[holder_].give_back();
  holder_ = user;
  if (calls_[user].take) calls_[user].take();
  seconds_ = seconds_ + watch.Lap();
  ++changes_;
  return lock;
}

}  // namespace orrery::kernels::cuda

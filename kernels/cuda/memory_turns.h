// Two users of one memory, turn by turn: the rollout (keys and values) and the training
// (activations). Who takes a turn finds the memory given back by the other; addresses stay, pages
// change hands (page_pool.h). Nothing of a user's contents survives the other's turn.
//
// Thread-safe: a turn lasts as long as its lock, and a user keeps the memory until the other asks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace orrery::kernels::cuda {

class MemoryTurns {
 public:
  enum User : uint8_t { kRollout, kTraining };
  struct Calls {
    std::function<void()> give_back;  // waits until its work is done
    std::function<void()> take;       // what of it must be there at the beginning of a turn
  };

  // Calls run inside Take. Without any: the user is gone.
  void Register(User user, Calls calls);

  // The memory is the user's while the lock lives.
  [[nodiscard]] std::unique_lock<std::mutex> Take(User user);

  // What changing hands has taken so far. Not waited for.
  double seconds() const { return seconds_; }
  int64_t changes() const { return changes_; }

 private:
  std::mutex mutex_;
  std::array<Calls, 2> calls_;
  int holder_ = -1;
  std::atomic<double> seconds_ = 0;
  std::atomic<int64_t> changes_ = 0;
};

}  // namespace orrery::kernels::cuda

// A few threads that run jobs in any order, with a bound on the bytes that waiting jobs hold. The
// first error stops further jobs and comes out of Wait(). Submit() and Wait() from one thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace orrery::sandbox::image {

class Workers {
 public:
  using Job = std::function<absl::Status()>;

  // 0 threads: jobs run inside Submit().
  Workers(int threads, int64_t max_bytes);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Waits where `bytes` more do not fit.
  void Submit(Job job, int64_t bytes);
  // Until every job has run; the first error.
  absl::Status Wait();

 private:
  struct Item {
    Job job;
    int64_t bytes;
  };
  void Run();

  const int64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  int64_t waiting_bytes_ = 0;
  int running_ = 0;
  bool closed_ = false;
  absl::Status status_;
  std::vector<std::thread> threads_;
};

}  // namespace orrery::sandbox::image

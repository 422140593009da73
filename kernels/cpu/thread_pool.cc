#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace orrery::kernels {
namespace {

thread_local bool in_task = false;

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// Workers sleep on a condition variable between jobs after a short spin: a spinning worker on a
// busy machine takes the core that somebody else needs.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~ThreadPool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // REQUIRES: one caller at a time (owner_ held).
  void Run(int64_t num_tasks, const std::function<void(int64_t)>& task) {
    {
      std::lock_guard lock(mutex_);
      task_ = &task;
      num_tasks_ = num_tasks;
      next_.store(0, std::memory_order_relaxed);
      active_ = 0;
      open_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    Drain(task, num_tasks);
    // No worker enters a closed job; wait for those inside.
    std::unique_lock lock(mutex_);
    open_ = false;
    if (active_ > 0) {
      lock.unlock();
      for (int spin = 0; spin < kSpins; ++spin) {
        if (finished_.load(std::memory_order_acquire)) break;
        Pause();
      }
      lock.lock();
    }
    done_.wait(lock, [this] { return active_ == 0; });
    task_ = nullptr;
  }

  std::mutex owner;

 private:
  static constexpr int kSpins = 4000;  // some tens of microseconds

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  void Drain(const std::function<void(int64_t)>& task, int64_t num_tasks) {
    in_task = true;
    while (true) {
      const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= num_tasks) break;
      task(i);
    }
    in_task = false;
  }

  void Work() {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins; ++spin) {
        if (generation_.load(std::memory_order_acquire) != seen) break;
        Pause();
      }
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_) return;
      if (!open_) continue;
      ++active_;
      finished_.store(false, std::memory_order_relaxed);
      const auto* task = task_;
      const int64_t num_tasks = num_tasks_;
      lock.unlock();
      Drain(*task, num_tasks);
      lock.lock();
      if (--active_ == 0) {
        finished_.store(true, std::memory_order_release);
        done_.notify_one();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> finished_{true};
  const std::function<void(int64_t)>* task_ = nullptr;  // guarded by mutex_, as all below
  int64_t num_tasks_ = 0;
  int active_ = 0;
  bool open_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

std::mutex pool_mutex;
std::shared_ptr<ThreadPool> pool;

std::shared_ptr<ThreadPool> Pool() {
  std::lock_guard lock(pool_mutex);
  if (pool == nullptr) pool = std::make_shared<ThreadPool>(AvailableCores());
  return pool;
}

}  // namespace

void SetNumThreads(int num_threads) {
  auto replacement = std::make_shared<ThreadPool>(num_threads > 0 ? num_threads : AvailableCores());
  std::lock_guard lock(pool_mutex);
  pool.swap(replacement);
}

int NumThreads() { return Pool()->num_threads(); }

void ParallelFor(int64_t num_tasks, const std::function<void(int64_t)>& task) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1) return task(0);  // the pool is still free for what is inside
  if (!in_task) {
    const std::shared_ptr<ThreadPool> p = Pool();
    if (p->num_threads() > 1 && p->owner.try_lock()) {
      std::lock_guard lock(p->owner, std::adopt_lock);
      p->Run(num_tasks, task);
      return;
    }
  }
  const bool outer = in_task;
  in_task = true;
  for (int64_t i = 0; i < num_tasks; ++i) task(i);
  in_task = outer;
}

}  // namespace orrery::kernels

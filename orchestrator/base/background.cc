#include "orchestrator/base/background.h"

#include <new>
#include <utility>

#include "orchestrator/base/status.h"

namespace orrery {
namespace {

absl::Status Run(const Background::Job& job) {
  try {
    return job();
  } catch (const std::bad_alloc&) {
    return Exhausted("the machine has no more memory");
  }
}

}  // namespace

Background::~Background() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status Background::Post(Job job) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return next_ == nullptr || !status_.ok(); });
  if (!status_.ok()) return status_;
  next_ = std::move(job);
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status Background::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !running_ && next_ == nullptr; });
  return status_;
}

// The job, with what it holds, is gone before anybody hears that it is done.
void Background::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return next_ != nullptr || ending_; });
    if (next_ == nullptr) return;
    Job job = std::exchange(next_, nullptr);
    running_ = true;
    lock.unlock();
    changed_.notify_all();
    absl::Status status = Run(job);
    job = nullptr;
    lock.lock();
    running_ = false;
    if (!status.ok()) next_ = nullptr;
    status_ = std::move(status);
    changed_.notify_all();
  }
}

}  // namespace orrery

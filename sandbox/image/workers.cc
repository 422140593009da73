#include "sandbox/image/workers.h"

namespace orrery::sandbox::image {

Workers::Workers(int threads, int64_t max_bytes) : max_bytes_(max_bytes) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    items_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::Submit(Job job, int64_t bytes) {
  if (threads_.empty()) {
    if (status_.ok()) status_ = job();
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_bytes_ == 0 || waiting_bytes_ + bytes <= max_bytes_; });
  waiting_bytes_ += bytes;
  items_.push_back({std::move(job), bytes});
  lock.unlock();
  changed_.notify_all();
}

absl::Status Workers::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return items_.empty() && running_ == 0; });
  return status_;
}

void Workers::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !items_.empty(); });
    if (closed_) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    ++running_;
    const bool wanted = status_.ok();
    lock.unlock();
    const absl::Status status = wanted ? item.job() : absl::OkStatus();
    item.job = nullptr;
    lock.lock();
    --running_;
    waiting_bytes_ -= item.bytes;
    if (status_.ok()) status_ = status;
    changed_.notify_all();
  }
}

}  // namespace orrery::sandbox::image

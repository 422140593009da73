#include "kernels/cuda/page_pool.h"

#include <algorithm>
#include <utility>

#include "orchestrator/base/check.h"

namespace orrery::kernels::cuda {

std::byte* CountingDriver::Reserve(int64_t bytes) {
  // A gap keeps any two ranges apart.
  return reinterpret_cast<std::byte*>(
      std::exchange(next_, next_ + static_cast<uintptr_t>(bytes) + (uintptr_t{1} << 30)));
}

PagePool::~PagePool() {
  CHECK_EQ(static_cast<int64_t>(idle_.size()), num_pages_);
  Trim();
}

int64_t PagePool::bytes() const {
  const std::lock_guard lock(mutex_);
  return num_pages_ * kPageBytes;
}

int64_t PagePool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_pages_ * kPageBytes;
}

int64_t PagePool::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(idle_.size()) * kPageBytes;
}

void PagePool::Trim() {
  const std::lock_guard lock(mutex_);
  for (const PageDriver::Page page : idle_) driver_->Destroy(page);
  num_pages_ -= static_cast<int64_t>(idle_.size());
  idle_.clear();
}

PageDriver::Page PagePool::Take() {
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    const PageDriver::Page page = idle_.back();
    idle_.pop_back();
    return page;
  }
  const PageDriver::Page page = driver_->Create(kPageBytes);
  peak_pages_ = std::max(peak_pages_, ++num_pages_);
  return page;
}

void PagePool::Give(PageDriver::Page page) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(page);
}

PageRange::PageRange(std::shared_ptr<PagePool> pool, int64_t max_bytes)
    : pool_(std::move(pool)),
      max_bytes_(PagePool::RoundUp(std::max<int64_t>(max_bytes, PagePool::kPageBytes))) {
  data_ = pool_->driver_->Reserve(max_bytes_);
}

PageRange::~PageRange() {
  if (pool_ == nullptr) return;
  Shrink(0);
  pool_->driver_->Unreserve(data_, max_bytes_);
}

PageRange& PageRange::operator=(PageRange&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(max_bytes_, other.max_bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

bool PageRange::Grow(int64_t bytes) {
  const int64_t from = this->bytes(), to = PagePool::RoundUp(bytes);
  if (to <= from) return false;
  CHECK_LE(to, max_bytes_);
  for (int64_t at = from; at < to; at += PagePool::kPageBytes) {
    pages_.push_back(pool_->Take());
    pool_->driver_->Map(data_ + at, PagePool::kPageBytes, pages_.back());
  }
  pool_->driver_->Allow(data_ + from, to - from);
  return true;
}

void PageRange::Shrink(int64_t bytes) {
  const int64_t to = PagePool::RoundUp(std::max<int64_t>(bytes, 0));
  while (this->bytes() > to) {
    pool_->driver_->Unmap(data_ + this->bytes() - PagePool::kPageBytes, PagePool::kPageBytes);
    pool_->Give(pages_.back());
    pages_.pop_back();
  }
}

}  // namespace orrery::kernels::cuda

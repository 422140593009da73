// Memory of a GPU in two parts that are taken separately: addresses, reserved once and kept, and
// pages of physical memory, mapped behind them while they are needed. So memory changes hands (the
// cache of keys and values, the activations of training) without a copy, without fragmentation, and
// without any address changing: graphs that were captured stay valid.
//
// PagePool owns the pages, PageRange a run of addresses; pages that a range gives back serve the
// next one that grows. PageDriver is what they need of the GPU's driver (device_pages.h), or of
// nothing: CountingDriver makes addresses up, so that code which takes memory can be run dry and
// asked how much it took.
//
// A pool may be used by several threads, a range by one at a time. Memory is uninitialised whenever
// it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace orrery::kernels::cuda {

class PageDriver {
 public:
  using Page = uint64_t;
  virtual ~PageDriver() = default;
  // False: nothing may be read or written at the addresses.
  virtual bool real() const = 0;
  virtual std::byte* Reserve(int64_t bytes) = 0;
  virtual void Unreserve(std::byte* at, int64_t bytes) = 0;
  virtual Page Create(int64_t bytes) = 0;
  virtual void Destroy(Page page) = 0;
  virtual void Map(std::byte* at, int64_t bytes, Page page) = 0;
  // Reading and writing, once mapped; several pages side by side in one call.
  virtual void Allow(std::byte* at, int64_t bytes) = 0;
  virtual void Unmap(std::byte* at, int64_t bytes) = 0;
};

// Counts; its addresses are made up.
class CountingDriver : public PageDriver {
 public:
  bool real() const override { return false; }
  std::byte* Reserve(int64_t bytes) override;
  void Unreserve(std::byte*, int64_t) override {}
  Page Create(int64_t) override { return 0; }
  void Destroy(Page) override {}
  void Map(std::byte*, int64_t, Page) override {}
  void Allow(std::byte*, int64_t) override {}
  void Unmap(std::byte*, int64_t) override {}

 private:
  uintptr_t next_ = uintptr_t{1} << 40;
};

class PagePool {
 public:
  static constexpr int64_t kPageBytes = int64_t{32} << 20;
  // What a range of so many bytes takes.
  static constexpr int64_t RoundUp(int64_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

  explicit PagePool(std::unique_ptr<PageDriver> driver) : driver_(std::move(driver)) {}
  // REQUIRES: no range is left.
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  bool real() const { return driver_->real(); }
  // Physical memory taken from the driver: in ranges, or waiting for one.
  int64_t bytes() const;
  int64_t peak_bytes() const;
  int64_t idle_bytes() const;
  // Gives idle pages back to the driver.
  void Trim();

 private:
  friend class PageRange;
  PageDriver::Page Take();
  void Give(PageDriver::Page page);

  const std::unique_ptr<PageDriver> driver_;
  mutable std::mutex mutex_;
  std::vector<PageDriver::Page> idle_;
  int64_t num_pages_ = 0, peak_pages_ = 0;
};

class PageRange {
 public:
  PageRange() = default;
  // Addresses for max_bytes, with nothing behind them.
  PageRange(std::shared_ptr<PagePool> pool, int64_t max_bytes);
  ~PageRange();
  PageRange(PageRange&& other) noexcept { *this = std::move(other); }
  PageRange& operator=(PageRange&& other) noexcept;

  // At least the first `bytes` have memory. True where that took more pages; what was there before
  // stays. REQUIRES: bytes is at most what was reserved.
  bool Grow(int64_t bytes);
  // Only the first `bytes`, rounded up to pages, keep theirs. REQUIRES: nothing on the device uses
  // the rest.
  void Shrink(int64_t bytes);

  std::byte* data() const { return data_; }
  template <typename T>
  T* as(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }
  // That have memory: whole pages.
  int64_t bytes() const { return static_cast<int64_t>(pages_.size()) * PagePool::kPageBytes; }

 private:
  std::shared_ptr<PagePool> pool_;
  std::byte* data_ = nullptr;
  int64_t max_bytes_ = 0;  // whole pages
  std::vector<PageDriver::Page> pages_;
};

}  // namespace orrery::kernels::cuda

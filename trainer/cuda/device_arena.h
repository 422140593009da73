// Device memory for the activations and gradients of one micro-batch: handed out in order from one
// run of addresses, taken back all at once. Physical memory behind it grows to the most that was
// ever handed out, and is kept until Release. Work on one stream: memory taken back may be handed
// out again at once, because what uses it next runs after what used it before. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/cuda/page_pool.h"
#include "kernels/tensor_view.h"

namespace orrery::trainer {

class DeviceArena {
 public:
  // max_bytes: of addresses.
  DeviceArena(std::shared_ptr<kernels::cuda::PagePool> pool, int64_t max_bytes)
      : range_(std::move(pool), max_bytes) {}

  // Uninitialised, 256-byte aligned.
  std::byte* Allocate(int64_t bytes) {
    std::byte* result = range_.data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > range_.bytes()) range_.Grow(std::max(used_, most_));
    most_ = std::max(most_, used_);
    return result;
  }
  kernels::TensorView Allocate(kernels::DType dtype, int64_t rows, int64_t cols) {
    return {Allocate(rows * cols * kernels::SizeOf(dtype)), dtype, rows, cols, cols};
  }
  void Reset() { used_ = 0; }
  // Physical memory for so many bytes, whatever is handed out.
  void Reserve(int64_t bytes) { range_.Grow(bytes); }
  // Gives the physical memory back. What grows next takes at once what was needed so far.
  // REQUIRES: nothing on the device uses it.
  void Release() {
    used_ = 0;
    range_.Shrink(0);
  }
  // Of physical memory.
  int64_t bytes() const { return range_.bytes(); }
  // The most that was handed out at a time.
  int64_t most_bytes() const { return most_; }

 private:
  kernels::cuda::PageRange range_;
  int64_t used_ = 0, most_ = 0;
};

}  // namespace orrery::trainer

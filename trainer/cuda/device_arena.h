// Device memory for the activations and gradients of one micro-batch: handed out in order, taken
// back all at once, kept between uses. Work on one stream: memory taken back may be handed out
// again at once, because what uses it next runs after what used it before. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/tensor_view.h"

namespace orrery::trainer {

class DeviceArena {
 public:
  // Uninitialised, 256-byte aligned.
  std::byte* Allocate(int64_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    while (current_ < blocks_.size() && used_ + bytes > blocks_[current_].bytes()) {
      ++current_;
      used_ = 0;
    }
    if (current_ == blocks_.size()) blocks_.emplace_back(std::max(bytes, kBlockBytes));
    std::byte* result = blocks_[current_].data() + used_;
    used_ += bytes;
    return result;
  }
  kernels::TensorView Allocate(kernels::DType dtype, int64_t rows, int64_t cols) {
    return {Allocate(rows * cols * kernels::SizeOf(dtype)), dtype, rows, cols, cols};
  }
  void Reset() { current_ = 0, used_ = 0; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& block : blocks_) sum += block.bytes();
    return sum;
  }

 private:
  static constexpr int64_t kBlockBytes = int64_t{128} << 20;

  std::vector<kernels::cuda::DeviceBuffer> blocks_;
  size_t current_ = 0;
  int64_t used_ = 0;
};

}  // namespace orrery::trainer

// Memory for the activations and gradients of one micro-batch: handed out in order, taken back all
// at once. It is kept between uses, in one block as large as the largest use so far, so that a step
// after the first allocates nothing and what does not fit at the end of a block is no waste. One
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/tensor_view.h"

namespace orrery::trainer {

class Arena {
 public:
  // Uninitialised, 64-byte aligned.
  kernels::TensorView Allocate(int64_t rows, int64_t cols) {
    return kernels::TensorView::Float(AllocateFloats(rows * cols), rows, cols);
  }
  float* AllocateFloats(int64_t n) {
    n = (n + 15) / 16 * 16;
    while (current_ < blocks_.size() && used_ + n > blocks_[current_].size) {
      ++current_;
      used_ = 0;
    }
    if (current_ == blocks_.size()) blocks_.push_back(MakeBlock(std::max(n, kBlockFloats)));
    float* result = blocks_[current_].data() + used_;
    used_ += n;
    handed_out_ += n;
    return result;
  }
  void Reset() {
    most_ = std::max(most_, handed_out_);
    if (blocks_.size() > 1) {
      blocks_.clear();  // first, for the room
      blocks_.push_back(MakeBlock(most_));
    }
    current_ = 0, used_ = 0, handed_out_ = 0;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Block& block : blocks_) sum += block.size * static_cast<int64_t>(sizeof(float));
    return sum;
  }

  static constexpr int64_t kBlockFloats = 1 << 20;  // of a block at least

 private:
  struct alignas(64) Line {
    float values[16];
  };
  struct Block {
    std::unique_ptr<Line[]> lines;
    int64_t size;  // floats
    float* data() const { return lines[0].values; }
  };
  static Block MakeBlock(int64_t floats) {
    return {std::unique_ptr<Line[]>(new Line[static_cast<size_t>((floats + 15) / 16)]), floats};
  }

  std::vector<Block> blocks_;
  size_t current_ = 0;
  int64_t used_ = 0;                   // of the current block, floats
  int64_t handed_out_ = 0, most_ = 0;  // since Reset, and the most ever
};

}  // namespace orrery::trainer

// A whole sequence as a batch of its own: positions from 0 on, blocks in order.
#pragma once

#include <numeric>
#include <vector>

#include "kernels/attention/attention.h"
#include "trainer/model/transformer.h"

namespace orrery::fakes {

class OneSequence {
 public:
  explicit OneSequence(std::vector<int32_t> ids)
      : ids_(std::move(ids)), rows_(ids_.size()), blocks_((ids_.size() + 15) / 16) {
    std::iota(rows_.begin(), rows_.end(), 0);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    span_.num_rows = static_cast<int64_t>(ids_.size());
    span_.blocks = blocks_;
  }
  OneSequence(const OneSequence&) = delete;
  OneSequence& operator=(const OneSequence&) = delete;

  // Valid as long as this.
  model::Batch batch() const {
    model::Batch batch;
    batch.token_ids = ids_;
    batch.positions = rows_;
    batch.slots = rows_;
    batch.sequences = {&span_, 1};
    return batch;
  }
  // 0 ... n - 1.
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  std::vector<int32_t> ids_, rows_, blocks_;
  kernels::SequenceSpan span_;
};

}  // namespace orrery::fakes

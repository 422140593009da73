// What kernels read of a MicroBatch, on the device: gathered on the host into one block of int32,
// sent in one copy. Used for one micro-batch after another; Upload waits until the last copy is
// done with the host's block.
#pragma once

#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/row_lists.h"
#include "trainer/packer.h"

namespace orrery::trainer {

class DeviceBatch {
 public:
  // real false: nothing is sent, device_bytes alone is kept up.
  explicit DeviceBatch(bool real);
  ~DeviceBatch();

  // extra: further int32s that come along, readable at extra().
  void Upload(const MicroBatch& micro, const kernels::HeadShape& heads,
              std::span<const int32_t> extra, cudaStream_t stream);

  // For so many device_bytes at once. REQUIRES: nothing was uploaded yet.
  void Reserve(int64_t bytes);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_targets() const { return num_targets_; }
  int64_t num_copies() const { return num_copies_; }
  int64_t max_position() const { return max_position_; }
  const int32_t* token_ids() const { return At(token_ids_); }
  const int32_t* positions() const { return At(positions_); }
  const int32_t* slots() const { return At(slots_); }
  kernels::cuda::AttentionRows attention_rows() const;
  const kernels::KvCopy* copies() const;
  const int32_t* target_rows() const { return At(target_rows_); }
  const int32_t* target_ids() const { return At(target_ids_); }
  // Rows by token, and targets by the row that predicts them.
  kernels::cuda::DeviceRowLists rows_by_token() const { return Lists(rows_by_token_); }
  kernels::cuda::DeviceRowLists targets_by_row() const { return Lists(targets_by_row_); }
  // Recorded experts of the rows, [rows, layers with experts, top_k] ids; null without replay.
  std::byte* routed_experts() const {
    return has_routed_experts_ && real_ ? device_.data() + 4 * routed_experts_ : nullptr;
  }
  const int32_t* extra() const { return At(extra_); }
  int64_t device_bytes() const { return capacity_; }

 private:
  struct ListOffsets {
    int64_t keys = 0, first = 0, indices = 0, num_lists = 0;
  };
  // Nothing where nothing was sent.
  const int32_t* At(int64_t offset) const {
    return real_ ? device_.as<int32_t>() + offset : nullptr;
  }
  int64_t Append(std::span<const int32_t> values);
  ListOffsets Append(const kernels::cuda::RowLists& lists);
  void AppendRoutedExperts(const MicroBatch& micro);
  kernels::cuda::DeviceRowLists Lists(const ListOffsets& o) const;
  void AppendTables(const MicroBatch& micro, const kernels::HeadShape& heads);
  void Send(cudaStream_t stream);

  const bool real_;
  std::vector<int32_t> values_;
  int64_t capacity_ = 0;
  kernels::cuda::PinnedBuffer pinned_;
  kernels::cuda::DeviceBuffer device_;
  cudaEvent_t sent_ = nullptr;
  int64_t num_rows_ = 0, num_targets_ = 0, num_copies_ = 0, max_position_ = 0, table_stride_ = 0;
  int64_t num_tiles_ = 0, num_lone_rows_ = 0, tiles_ = 0, lone_rows_ = 0;
  int64_t token_ids_ = 0, positions_ = 0, slots_ = 0, sequence_of_ = 0, tables_ = 0, copies_ = 0,
          target_rows_ = 0, target_ids_ = 0, extra_ = 0, routed_experts_ = 0;
  bool has_routed_experts_ = false;
  ListOffsets rows_by_token_, targets_by_row_;
};

}  // namespace orrery::trainer

#include "trainer/cuda/device_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace orrery::trainer {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::DeviceRowLists;
using kernels::cuda::PinnedBuffer;
using kernels::cuda::RowLists;

DeviceBatch::DeviceBatch(bool real) : real_(real) {
  if (real) CUDA_CHECK(cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming));
}
DeviceBatch::~DeviceBatch() {
  if (real_) cudaEventDestroy(sent_);
}

int64_t DeviceBatch::Append(std::span<const int32_t> values) {
  constexpr size_t kAligned = 64;  // int32s
  values_.resize((values_.size() + kAligned - 1) / kAligned * kAligned);
  const auto offset = static_cast<int64_t>(values_.size());
  values_.insert(values_.end(), values.begin(), values.end());
  return offset;
}

DeviceBatch::ListOffsets DeviceBatch::Append(const RowLists& lists) {
  ListOffsets o;
  o.keys = Append(lists.keys);
  o.first = Append(lists.first);
  o.indices = Append(lists.indices);
  o.num_lists = static_cast<int64_t>(lists.keys.size());
  return o;
}

DeviceRowLists DeviceBatch::Lists(const ListOffsets& o) const {
  return {At(o.keys), At(o.first), At(o.indices), o.num_lists};
}

void DeviceBatch::AppendTables(const MicroBatch& micro, const kernels::HeadShape& heads) {
  size_t stride = 1;
  for (const auto& table : micro.block_tables) stride = std::max(stride, table.size());
  table_stride_ = static_cast<int64_t>(stride);
  std::vector<int32_t> tables(micro.spans.size() * stride);
  std::vector<int32_t> sequence_of(micro.token_ids.size());
  for (size_t s = 0; s < micro.spans.size(); ++s) {
    std::copy(micro.block_tables[s].begin(), micro.block_tables[s].end(),
              tables.begin() + static_cast<int64_t>(s * stride));
    std::fill_n(sequence_of.begin() + micro.spans[s].first_row, micro.spans[s].num_rows,
                static_cast<int32_t>(s));
  }
  tables_ = Append(tables);
  sequence_of_ = Append(sequence_of);
  const kernels::cuda::AttentionDivision division =
      kernels::cuda::DivideRows(micro.positions, sequence_of, heads);
  static_assert(sizeof(kernels::cuda::AttentionTile) == 2 * sizeof(int32_t));
  num_tiles_ = static_cast<int64_t>(division.tiles.size());
  num_lone_rows_ = static_cast<int64_t>(division.lone_rows.size());
  tiles_ =
      Append({reinterpret_cast<const int32_t*>(division.tiles.data()), 2 * division.tiles.size()});
  lone_rows_ = Append(division.lone_rows);
}

void DeviceBatch::AppendRoutedExperts(const MicroBatch& micro) {
  has_routed_experts_ = micro.replays_routing();
  routed_experts_ = Append(std::span<const int32_t>());
  if (!has_routed_experts_) return;
  const auto row_bytes = static_cast<size_t>(micro.routed_layers) * micro.routed_top_k *
                         static_cast<size_t>(micro.routed_id_bytes);
  const size_t bytes = micro.routed_rows.size() * row_bytes;
  values_.resize(values_.size() + (bytes + 3) / 4);
  auto* to = reinterpret_cast<uint8_t*>(values_.data() + routed_experts_);
  for (const uint8_t* row : micro.routed_rows) {
    std::memcpy(to, row, row_bytes);
    to += row_bytes;
  }
}

void DeviceBatch::Upload(const MicroBatch& micro, const kernels::HeadShape& heads,
                         std::span<const int32_t> extra, cudaStream_t stream) {
  values_.clear();
  num_rows_ = static_cast<int64_t>(micro.token_ids.size());
  num_targets_ = static_cast<int64_t>(micro.targets.size());
  num_copies_ = static_cast<int64_t>(micro.copies.size());
  max_position_ = *std::max_element(micro.positions.begin(), micro.positions.end());
  std::vector<int32_t> rows(micro.targets.size()), ids(micro.targets.size());
  for (size_t i = 0; i < micro.targets.size(); ++i) {
    rows[i] = micro.targets[i].row;
    ids[i] = micro.targets[i].token_id;
  }
  static_assert(sizeof(kernels::KvCopy) == 3 * sizeof(int32_t));
  token_ids_ = Append(micro.token_ids);
  positions_ = Append(micro.positions);
  slots_ = Append(micro.slots);
  AppendTables(micro, heads);
  copies_ =
      Append({reinterpret_cast<const int32_t*>(micro.copies.data()), 3 * micro.copies.size()});
  target_rows_ = Append(rows);
  target_ids_ = Append(ids);
  rows_by_token_ = Append(kernels::cuda::ListByKey(micro.token_ids));
  targets_by_row_ = Append(kernels::cuda::ListByKey(rows));
  extra_ = Append(extra);
  AppendRoutedExperts(micro);
  Send(stream);
}

void DeviceBatch::Reserve(int64_t bytes) {
  CHECK_EQ(capacity_, 0);
  capacity_ = bytes;
  if (!real_) return;
  pinned_ = PinnedBuffer(capacity_);
  device_ = DeviceBuffer(capacity_);
}

void DeviceBatch::Send(cudaStream_t stream) {
  const auto bytes = static_cast<int64_t>(values_.size() * sizeof(int32_t));
  const bool grows = capacity_ < bytes;
  // A function of the largest micro-batch alone, whatever came before it: a dry run says the same.
  if (grows) capacity_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
  if (!real_) return;
  CUDA_CHECK(cudaEventSynchronize(sent_));
  if (grows) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    pinned_ = PinnedBuffer(capacity_);
    device_ = DeviceBuffer(capacity_);
  }
  std::memcpy(pinned_.data(), values_.data(), static_cast<size_t>(bytes));
  CUDA_CHECK(cudaMemcpyAsync(device_.data(), pinned_.data(), static_cast<size_t>(bytes),
                             cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaEventRecord(sent_, stream));
}

kernels::cuda::AttentionRows DeviceBatch::attention_rows() const {
  kernels::cuda::AttentionRows rows;
  rows.positions = positions();
  rows.sequence_of = At(sequence_of_);
  rows.block_tables = At(tables_);
  rows.table_stride = table_stride_;
  rows.tiles = reinterpret_cast<const kernels::cuda::AttentionTile*>(At(tiles_));
  rows.num_tiles = num_tiles_;
  rows.lone_rows = At(lone_rows_);
  rows.num_lone_rows = num_lone_rows_;
  return rows;
}

const kernels::KvCopy* DeviceBatch::copies() const {
  return reinterpret_cast<const kernels::KvCopy*>(At(copies_));
}

}  // namespace orrery::trainer

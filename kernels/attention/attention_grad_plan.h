// How attention's gradient (attention_grad_cuda.h) covers a packed batch: a pure function of the
// spans, made once a micro-batch and used in all layers. No CUDA here.
//
// Two lists of tiles, each item of work one (tile, key-value head), the longest first:
//   - query tiles (dQ): rows of one span; they see the rows of its prefix, and their own span's up
//     to themselves;
//   - key tiles (dK, dV): rows of one span, and the runs of rows that see them: their own span's
//     from the tile on, then the spans whose prefix they are. Spans that lie side by side and share
//     a prefix are one run.
// A tile adds its runs in order. Keys that so many queries see that the rest of the GPU would wait
// for them (a prompt of many samples) are given to several tiles, whose sums are added in order.
// All of it is a function of the plan: bitwise repeatable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// Plain int32 records: the lists are uploaded as they are.
struct QueryTile {
  int32_t first_row = 0, num_rows = 0;
  int32_t span_first_row = 0;                     // own keys: from this row on
  int32_t prefix_first_row = 0, prefix_rows = 0;  // keys that all of its queries see
};

// Rows of queries that see keys of a tile: row q those up to row q, or up to key_end.
struct QueryRun {
  int32_t first_row = 0, num_rows = 0;
  int32_t key_end = -1;  // negative: causal
};

struct KeyTile {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_run = 0, num_runs = 0;
  int32_t partial = -1;  // where its sums go, if several tiles share its rows; else negative
};

// Rows whose queries are shared among several tiles: their partial sums are added in order.
struct KeySum {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_partial = 0, num_partials = 0;
};

struct AttentionGradPlan {
  bool tensor_cores = false;  // or the simple kernels: float32, other shapes, other GPUs
  int64_t num_rows = 0;       // of the batch, as far as spans reach
  int64_t workspace_bytes = 0;
  std::vector<QueryTile> query_tiles;
  std::vector<KeyTile> key_tiles;
  std::vector<QueryRun> runs;
  std::vector<KeySum> sums;
  int64_t num_partials = 0;

  // The four lists, one after the other, for the device.
  std::vector<int32_t> Words() const;
};

// REQUIRES: rows of spans do not overlap; a prefix is the beginning of one span of the batch whose
// first position is 0.
AttentionGradPlan PlanAttentionGrad(std::span<const SequenceSpan> spans, const HeadShape& heads,
                                    DType dtype, const DeviceLimits& limits);

// Rows of a tile.
struct AttentionGradTile {
  int64_t query_rows, key_rows;
};
AttentionGradTile SizeOfAttentionGradTile(const HeadShape& heads, bool tensor_cores);

}  // namespace orrery::kernels::cuda

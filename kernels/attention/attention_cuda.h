// Causal attention over paged keys and values on a GPU: each row of the batch is one query position
// of one sequence, and sees positions 0..position of its sequence.
//
//   s_j = scale * q . k_j,  P = softmax(s),  out = round(sum_j P_j v_j)
//
// The sum is cut at absolute positions: a chunk is 256 positions, an online softmax over steps of
// 64 positions in order; chunks are folded from the first to the last. Nothing of that depends on
// what else is in the batch or on how rows and chunks are given to thread blocks: a position's
// output is bitwise the same in decode and prefill. P is rounded to bfloat16 where the model is
// bfloat16.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/attention_plan.h"
#include "kernels/attention/kv_cache_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

struct AttentionRows {
  const int32_t* positions = nullptr;     // [T] absolute; negative: a row of padding, not computed
  const int32_t* sequence_of = nullptr;   // [T] row of block_tables
  const int32_t* block_tables = nullptr;  // [sequences, table_stride] block ids by position / 16
  int64_t table_stride = 0;
  // [T], or null: the keys and values of the row's positions below settled[t] are complete before
  // the kernels of this pass, and so are these arrays and lone_rows: something other than a kernel
  // (a copy, a graph's launch) lies between in the stream, so that none of the pass has started
  // before. Rows that go alone then fetch them while the kernels before attention still run.
  const int32_t* settled = nullptr;
  // How rows are dealt to kernels (DivideRows; a matter of speed alone): tiles, and rows that go
  // alone, on the device. No tiles: every row goes alone.
  const AttentionTile* tiles = nullptr;
  int64_t num_tiles = 0;
  const int32_t* lone_rows = nullptr;
  int64_t num_lone_rows = 0;

  // Of a batch of so many rows: what the plan is made for.
  int64_t num_alone(int64_t rows) const { return num_tiles > 0 ? num_lone_rows : rows; }
};

// qkv: [T, (Hq + 2 Hkv) D] with rotated queries in its first columns, dtype of the cache.
// out: [T, Hq D]. workspace: plan.workspace_bytes, 16-byte aligned,
// zeroed before its first use; one stream at a time.
void Attention(const TensorView& qkv, const HeadShape& heads, float scale,
               const AttentionRows& rows, const KvBlocks& kv, const AttentionPlan& plan,
               void* workspace, const TensorView& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

// Causal attention of packed sequences over paged keys and values, the same function for prefill,
// decode and training. For a query at absolute position p of its sequence and its key-value head:
//
//   s_j = scale * q . k_j  (j = 0..p),  P = softmax(s),  out = round(sum_j P_j v_j)
//
// Keys and values live in blocks of 16 positions, counted from position 0 of the sequence. Scores
// are one multiply-add chain over D; the softmax sum runs over 16 lanes block by block; the value
// sum is one chain over j. Nothing of that depends on which other queries are in the batch, so a
// position's output is bitwise the same in decode, chunked prefill and training.
#pragma once

#include <span>
#include <vector>

#include "kernels/rope/qk_norm_rope.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels {

inline constexpr int64_t kBlockTokens = 16;

// One layer's keys and values. k: [blocks, Hkv, D, 16] (a block's keys are stored transposed, lanes
// over positions); v: [blocks, Hkv, 16, D]. Values of positions not yet written must be finite.
struct KvBlocks {
  float* k = nullptr;
  float* v = nullptr;
  int64_t num_blocks = 0;

  static int64_t NumElements(const HeadShape& heads, int64_t blocks) {
    return blocks * heads.kv_width() * kBlockTokens;  // for k, and again for v
  }
};

// The consecutive queries of one sequence in a packed batch.
struct SequenceSpan {
  int64_t first_row = 0;  // of its queries in the batch
  int64_t num_rows = 0;
  int64_t first_position = 0;  // absolute position of the first query
  // Block ids that cover positions [0, first_position + num_rows).
  std::span<const int32_t> blocks;
  // Training only: the batch row of position 0 where positions below first_position are rows of
  // another sequence (a shared prompt), position i being row prefix_first_row + i.
  int64_t prefix_first_row = -1;
};

// The same positions of a block in another block: `count` positions from `offset` on. Used where
// sequences go separate ways inside a block.
struct KvCopy {
  int32_t from_block = 0;
  int32_t to_block = 0;
  int32_t count = 0;  // positions [0, count) of the block
};

// Writes keys and values of all rows. slots[t] = block * 16 + offset.
void WriteKv(const TensorView& qkv, const HeadShape& heads, std::span<const int32_t> slots,
             const KvBlocks& kv);
void CopyKv(std::span<const KvCopy> copies, const HeadShape& heads, const KvBlocks& kv);

// qkv: [T, (Hq + 2 Hkv) D], its first Hq * D columns the rotated queries. out: [T, Hq * D].
void Attention(const TensorView& qkv, const HeadShape& heads, float scale,
               std::span<const SequenceSpan> sequences, const KvBlocks& kv, Rounding rounding,
               const TensorView& out);

// Gradient with respect to the rotated qkv of all rows, from saved qkv and out. Keys and values
// come from the rows of the batch (positions below first_position from the prefix rows). dqkv is
// overwritten. Sequences are added in order: bitwise repeatable.
void AttentionGrad(const TensorView& dout, const TensorView& qkv, const TensorView& out,
                   const HeadShape& heads, float scale, std::span<const SequenceSpan> sequences,
                   const TensorView& dqkv);

// One query in double: q [D], k and v [n, D] with row stride.
void AttentionReference(const float* q, const float* k, const float* v, int64_t n, int64_t d,
                        int64_t kv_stride, double scale, double* out);

}  // namespace orrery::kernels

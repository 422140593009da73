// What the producers and the consumers of attention_warpgroups.cu share: the thread block's shared
// memory, its items (a tile and a key-value head each), and the barriers between the two.
#pragma once

#include "kernels/attention/attention_kernels.cuh"
#include "kernels/attention/attention_order.cuh"
#include "kernels/attention/float8_kv.cuh"
#include "kernels/cuda/ring_position.cuh"
#include "kernels/cuda/wgmma_operands.cuh"

namespace orrery::kernels::cuda::warpgroups {

using bf16 = __nv_bfloat16;

inline constexpr int kConsumers = 2;  // warpgroups, 64 queries each
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kProducerWarps = kStepBlocks;  // each brings a block of every step
inline constexpr int kThreads = 32 * (kConsumerWarps + kProducerWarps);
inline constexpr int kQueryBuffers = 2;
static_assert(64 * kConsumers == kTileQueries);

// Shared memory: stages, queries, and in float8 what landed. A stage is two matrices, keys and
// values, each [64 positions, D] in panels of 64 columns.
template <int D, KvFormat kFormat>
struct Layout {
  static constexpr bool kFloat8 = kFormat == KvFormat::kFloat8;
  static constexpr int kPanels = D / 64;
  static constexpr int kPanelBytes = kStepTokens * 128;
  static constexpr int kMatrixBytes = kPanels * kPanelBytes;
  static constexpr int kStageBytes = 2 * kMatrixBytes;
  static constexpr int kStages = 4;
  static constexpr int kQueryBytes = kTileQueries * D * 2;
  // Of the cache: keys (or values) of a block and head, and one panel of them.
  static constexpr int kPieceBytes = kBlockTokens * (kFloat8 ? D + 1 : D * 2);
  static constexpr int kPiecePanelBytes = kBlockTokens * 128;
  static constexpr int kPackedDepth = 2;
  // Of a thread; 168 as they come.
  static constexpr int kProducerRegisters = D == 64 ? 72 : 56;
  static constexpr int kConsumerRegisters = D == 64 ? 216 : 224;
  static constexpr int kWarpPackedBytes = kPackedDepth * 2 * kPieceBytes;

  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kPackedAt = kQueriesAt + kQueryBuffers * kQueryBytes;
  static constexpr int kSharedBytes =
      kPackedAt + (kFloat8 ? kProducerWarps * kWarpPackedBytes : 0) + 1024;  // and room to align
};

// A (tile, key-value head).
struct Item {
  int head, first_position, first_row, num_rows;

  __device__ __forceinline__ int last_block() const {
    return (first_position + num_rows - 1) / static_cast<int>(kBlockTokens);
  }
  __device__ __forceinline__ int num_steps() const { return last_block() / kStepBlocks + 1; }
  // The row, within the tile, of one of its queries; those past the last are computed as ones of
  // the last row and not stored.
  __device__ __forceinline__ int RowOf(int query, int group) const {
    return min(query / group, num_rows - 1);
  }
};

// The same in every lane, so that the compiler keeps what follows of it in uniform registers.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

__device__ __forceinline__ int NumItems(const AttentionParams& p) {
  return static_cast<int>(p.rows.num_tiles) * p.num_kv_heads;
}
// Later tiles of a sequence see more keys: they go first. Past the last: the last again.
__device__ __forceinline__ int PlaceOf(const AttentionParams& p, int index) {
  return max(NumItems(p) - 1 - index, 0);
}

// The row and the head of queries that are kStep apart, without a division each.
template <int kStep>
struct QueryWalk {
  int row, head;
  const int group, row_step, head_step;

  __device__ __forceinline__ QueryWalk(int query, int group)
      : row(query / group),
        head(query - row * group),
        group(group),
        row_step(kStep / group),
        head_step(kStep - row_step * group) {}
  __device__ __forceinline__ void Next() {
    row += row_step;
    head += head_step;
    if (head >= group) {
      head -= group;
      ++row;
    }
  }
};

template <int D, KvFormat kFormat>
struct Control {
  static constexpr int kStages = Layout<D, kFormat>::kStages;
  Item items[kQueryBuffers];  // of the queries that are there
  uint64_t full[kStages], empty[kStages];
  uint64_t queries_full[kQueryBuffers], queries_empty[kQueryBuffers];
  uint64_t landed[kProducerWarps][Layout<D, kFormat>::kPackedDepth];  // of float8

  __device__ void Init() {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(&full[s], kProducerWarps);
      BarrierInit(&empty[s], kConsumerWarps);
    }
    for (int b = 0; b < kQueryBuffers; ++b) {
      BarrierInit(&queries_full[b], 32 * kProducerWarps + 1);
      BarrierInit(&queries_empty[b], kConsumerWarps);
    }
    for (int w = 0; w < kProducerWarps; ++w) {
      for (int i = 0; i < Layout<D, kFormat>::kPackedDepth; ++i) BarrierInit(&landed[w][i], 1);
    }
    BarrierInitFence();
  }
};

// What producers and consumers alike know of their thread block.
template <int D, KvFormat kFormat>
struct Warp {
  using L = Layout<D, kFormat>;
  const AttentionParams& p;
  char* shared;
  Control<D, kFormat>* control;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ __forceinline__ char* QueriesAt(int buffer) const {
    return shared + L::kQueriesAt + buffer * L::kQueryBytes;
  }
};

}  // namespace orrery::kernels::cuda::warpgroups

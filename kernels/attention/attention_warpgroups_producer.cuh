// The first half of attention_warpgroups.cu: what a thread block has in shared memory, its items,
// and the producer warps that bring what its consumers compute with.
#pragma once

#include "kernels/attention/attention_kernels.cuh"
#include "kernels/attention/attention_order.cuh"
#include "kernels/attention/float8_kv.cuh"
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

// A place in a ring, and how often the ring was gone round, modulo 2.
template <int kSize>
struct Turn {
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++at == kSize) {
      at = 0;
      phase ^= 1;
    }
  }
};

template <int D, KvFormat kFormat>
struct Producer {
  using L = Layout<D, kFormat>;
  const AttentionParams& p;
  char* shared;
  Control<D, kFormat>* control;
  const int warp = static_cast<int>(threadIdx.x) / 32 % kProducerWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Turn<L::kStages> stage;
  Turn<L::kPackedDepth> asked, taken;  // of float8

  __device__ __forceinline__ void Queries(const Item& item, char* to) const {
    constexpr int kChunks = D / 8, kRows = 32 * kProducerWarps / kChunks;
    const int thread = warp * 32 + lane, chunk = thread % kChunks;
    QueryWalk<kRows> walk(thread / kChunks, p.group);
    const bf16* const from =
        p.queries + item.first_row * p.query_stride + item.head * p.group * D + chunk * 8;
#pragma unroll 2
    for (int query = thread / kChunks; query < kTileQueries; query += kRows, walk.Next()) {
      AsyncCopy16(to + PanelOffset(kTileQueries, query, chunk),
                  from + min(walk.row, item.num_rows - 1) * p.query_stride + walk.head * D);
    }
  }

  // Keys and values of a block, as the cache holds them, by the lanes that have a copy to start.
  __device__ __forceinline__ void Copy(int64_t piece, char* to, uint64_t* barrier) const {
    constexpr int kCopies = L::kFloat8 ? 1 : L::kPanels;  // of keys, and of values
    constexpr int kBytes = L::kPieceBytes / kCopies;
    constexpr int kApart = L::kFloat8 ? 0 : L::kPanelBytes;
    constexpr int kMatrix = L::kFloat8 ? L::kPieceBytes : L::kMatrixBytes;
    if (lane == 0) BarrierArriveExpect(barrier, 2 * L::kPieceBytes);
    __syncwarp();
    if (lane >= 2 * kCopies) return;
    const int part = lane % kCopies, matrix = lane / kCopies;
    BulkCopy(to + matrix * kMatrix + part * kApart,
             (matrix == 0 ? p.k : p.v) + piece * L::kPieceBytes + part * kBytes, kBytes, barrier);
  }

  // ids: lane i holds the id of block i of the warp's first 32; read here where there are more.
  __device__ __forceinline__ void Steps(const Item& item, const int32_t* table, int ids) {
    const int num_steps = item.num_steps();
    const int mine = (item.last_block() - warp + kStepBlocks) / kStepBlocks;  // blocks of this warp
    const auto piece_of = [&](int n) {  // for n in ascending order
      if (n > 0 && n % 32 == 0) ids = n + lane < mine ? table[(n + lane) * kStepBlocks] : 0;
      return int64_t{__shfl_sync(0xffffffffu, ids, n % 32)} * p.num_kv_heads + item.head;
    };
    char* const packed = shared + L::kPackedAt + warp * L::kWarpPackedBytes;
    const auto ask = [&](int n) {
      const int64_t piece = piece_of(n);
      if (n >= mine) return;
      Copy(piece, packed + asked.at * 2 * L::kPieceBytes, &control->landed[warp][asked.at]);
      asked.Next();
    };
    if constexpr (L::kFloat8) {
      for (int n = 0; n < L::kPackedDepth && n < num_steps; ++n) ask(n);
    }
#pragma unroll 1
    for (int n = 0; n < num_steps; ++n, stage.Next()) {
      char* const to = shared + stage.at * L::kStageBytes + warp * L::kPiecePanelBytes;
      uint64_t* const full = &control->full[stage.at];
      BarrierWait(&control->empty[stage.at], stage.phase ^ 1);
      if constexpr (L::kFloat8) {
        if (n < mine) {
          BarrierWait(&control->landed[warp][taken.at], taken.phase);
          const char* from = packed + taken.at * 2 * L::kPieceBytes;
          UnpackPiece<D>(from, to, L::kPanelBytes);
          UnpackPiece<D>(from + L::kPieceBytes, to + L::kMatrixBytes, L::kPanelBytes);
          FenceForTensorCores();
          taken.Next();
        }
        __syncwarp();
        if (lane == 0) BarrierArrive(full);
        if (n + L::kPackedDepth < num_steps) ask(n + L::kPackedDepth);
      } else {
        const int64_t piece = piece_of(n);
        if (n < mine) {
          Copy(piece, to, full);
        } else if (lane == 0) {
          BarrierArrive(full);
        }
      }
    }
  }

  // What an item is lies behind three reads, each at an address that the one before gives. They go
  // ahead of the item by up to two items.
  __device__ __forceinline__ void Run() {
    const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
    const auto tile_of = [&](int i) { return p.rows.tiles[PlaceOf(p, i) / p.num_kv_heads]; };
    AttentionTile tile = tile_of(first), next_tile = tile_of(first + step);
    int position = p.rows.positions[tile.first_row];
    int sequence = p.rows.sequence_of[tile.first_row];
    Turn<kQueryBuffers> buffer;
    for (int i = first; i < NumItems(p); i += step, buffer.Next()) {
      const Item item{PlaceOf(p, i) % p.num_kv_heads, position, tile.first_row, tile.num_rows};
      const int32_t* table = p.rows.block_tables + sequence * p.rows.table_stride + warp;
      const int blocks = (item.last_block() - warp + kStepBlocks) / kStepBlocks;
      const int ids = lane < blocks ? table[lane * kStepBlocks] : 0;
      tile = next_tile;
      next_tile = tile_of(i + 2 * step);
      position = p.rows.positions[tile.first_row];
      sequence = p.rows.sequence_of[tile.first_row];

      uint64_t* const full = &control->queries_full[buffer.at];
      BarrierWait(&control->queries_empty[buffer.at], buffer.phase ^ 1);
      Queries(item, shared + L::kQueriesAt + buffer.at * L::kQueryBytes);
      BarrierArriveAfterCopies(full);
      if (warp == 0 && lane == 0) {
        control->items[buffer.at] = item;
        BarrierArrive(full);
      }
      Steps(item, table, ids);
    }
    WaitForOwnCopies();
  }
};

}  // namespace orrery::kernels::cuda::warpgroups

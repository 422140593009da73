// The producer warps of attention_warpgroups.cu, which bring what its consumers compute with.
#pragma once

#include "kernels/attention/attention_warpgroups_block.cuh"

namespace orrery::kernels::cuda::warpgroups {

template <int D, KvFormat kFormat>
struct Producer : Warp<D, kFormat> {
  using Base = Warp<D, kFormat>;
  using L = typename Base::L;
  using Base::p, Base::shared, Base::control, Base::lane, Base::QueriesAt;
  const int warp = static_cast<int>(threadIdx.x) / 32 % kProducerWarps;
  RingPosition ring;
  RingPosition asked, taken;  // of float8

  // How many blocks of an item this warp brings.
  __device__ __forceinline__ int BlocksOf(const Item& item) const {
    return (item.last_block() - warp + kStepBlocks) / kStepBlocks;
  }

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
    const int mine = BlocksOf(item);
    const auto piece_of = [&](int n) {  // for n in ascending order
      if (n > 0 && n % 32 == 0) ids = n + lane < mine ? table[(n + lane) * kStepBlocks] : 0;
      return int64_t{__shfl_sync(0xffffffffu, ids, n % 32)} * p.num_kv_heads + item.head;
    };
    char* const packed = shared + L::kPackedAt + warp * L::kWarpPackedBytes;
    const auto ask = [&](int n) {
      const int64_t piece = piece_of(n);
      if (n >= mine) return;
      Copy(piece, packed + asked.stage * 2 * L::kPieceBytes, &control->landed[warp][asked.stage]);
      asked.Advance(L::kPackedDepth);
    };
    if constexpr (L::kFloat8) {
      for (int n = 0; n < L::kPackedDepth && n < num_steps; ++n) ask(n);
    }
#pragma unroll 1
    for (int n = 0; n < num_steps; ++n, ring.Advance(L::kStages)) {
      char* const to = shared + ring.stage * L::kStageBytes + warp * L::kPiecePanelBytes;
      uint64_t* const full = &control->full[ring.stage];
      BarrierWait(&control->empty[ring.stage], ring.phase ^ 1);
      if constexpr (L::kFloat8) {
        if (n < mine) {
          BarrierWait(&control->landed[warp][taken.stage], taken.phase);
          const char* from = packed + taken.stage * 2 * L::kPieceBytes;
          UnpackPiece<D>(from, to, L::kPanelBytes);
          UnpackPiece<D>(from + L::kPieceBytes, to + L::kMatrixBytes, L::kPanelBytes);
          FenceForTensorCores();
          taken.Advance(L::kPackedDepth);
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
    RingPosition query_ring;
    for (int i = first; i < NumItems(p); i += step, query_ring.Advance(kQueryBuffers)) {
      const Item item{PlaceOf(p, i) % p.num_kv_heads, position, tile.first_row, tile.num_rows};
      const int32_t* table = p.rows.block_tables + sequence * p.rows.table_stride + warp;
      const int ids = lane < BlocksOf(item) ? table[lane * kStepBlocks] : 0;
      tile = next_tile;
      next_tile = tile_of(i + 2 * step);
      position = p.rows.positions[tile.first_row];
      sequence = p.rows.sequence_of[tile.first_row];

      uint64_t* const full = &control->queries_full[query_ring.stage];
      BarrierWait(&control->queries_empty[query_ring.stage], query_ring.phase ^ 1);
      Queries(item, QueriesAt(query_ring.stage));
      BarrierArriveAfterCopies(full);
      if (warp == 0 && lane == 0) {
        control->items[query_ring.stage] = item;
        BarrierArrive(full);
      }
      Steps(item, table, ids);
    }
    WaitForOwnCopies();
  }
};

}  // namespace orrery::kernels::cuda::warpgroups

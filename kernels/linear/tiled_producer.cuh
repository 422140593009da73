// Shapes of the tiled product (tiled_product.cuh), and its producer warps: they fill the ring of
// stages, tile after tile.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/tile_list.cuh"
#include "kernels/linear/turned_outputs.cuh"

namespace orrery::kernels::cuda {

template <bool kGated_, int kBlocks_, int kBlockRowsN_, int kStages_>
struct TiledShape {
  static constexpr bool kGated = kGated_;
  static constexpr int kBlocks = kBlocks_;  // of a cluster
  static constexpr int kRowsM = 256;
  static constexpr int kBoxRows = 128;                        // weights of one copy
  static constexpr int kBoxes = kRowsM / kBoxRows / kBlocks;  // copies that a block asks for
  static constexpr int kFeatures = kGated ? 128 : 256;
  static constexpr int kBlockRowsN = kBlockRowsN_;
  static constexpr int kRowsN = kBlocks * kBlockRowsN;
  static constexpr int kBoxTokens = 32;  // rows of X of one copy
  static constexpr int kSlab = 64;
  static constexpr int kRowBytes = 2 * kSlab;
  static constexpr int kStages = kStages_;
  static constexpr int kConsumers = 256, kProducers = 128;  // threads
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kStageBytes = (kRowsM + kBlockRowsN) * kRowBytes;
  using Turned = TurnedOutputs<kFeatures / 2>;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kConsumers / 128 * Turned::kBytes + 1024;  // and room to align
};

template <bool kGated>
using ManyRows = TiledShape<kGated, 2, 160, 4>;
template <bool kGated>
using FewRows = TiledShape<kGated, 1, 64, 5>;

// The rows of a cluster's tile that one block has.
template <int kBlocks>
struct BlockRows {
  int first = 0, count;
  __device__ BlockRows(int num_rows, int rank) : count(num_rows) {
    if constexpr (kBlocks > 1) {
      static_assert(kBlocks == 2);
      const int half = (num_rows + 15) / 16 * 8;
      first = rank * half;
      count = min(num_rows - first, half);  // fewer for the second, or none
    }
  }
};

// Weights by the copy engine: what one thread of the producers asks for.
template <typename Shape, typename Problem>
struct TiledWeights {
  const Problem& problem;
  const CUtensorMap* map;
  int rank;
  int first_rows[Shape::kBoxes];  // of each box

  template <typename Tile>
  __device__ void Find(const Tile& tile) {
#pragma unroll
    for (int b = 0; b < Shape::kBoxes; ++b) {
      const int box = rank * Shape::kBoxes + b;
      const bf16* first = problem.Weights(tile, Shape::kGated ? box : 0);
      first_rows[b] = static_cast<int>((first - problem.w) / problem.weight_stride) +
                      (Shape::kGated ? 0 : box * Shape::kBoxRows);
    }
  }
  // Where outputs end, a box has rows that no output uses.
  __device__ void Copy(char* stage, int k0, uint64_t* full) const {
    BarrierExpect(full, Shape::kRowsM * Shape::kRowBytes);
#pragma unroll
    for (int b = 0; b < Shape::kBoxes; ++b) {
      char* to = stage + (rank * Shape::kBoxes + b) * Shape::kBoxRows * Shape::kRowBytes;
      if constexpr (Shape::kBlocks == 1) {
        CopyBox(to, map, k0, first_rows[b], full);
      } else {
        CopyBoxToCluster(to, map, k0, first_rows[b], full, (1 << Shape::kBlocks) - 1);
      }
    }
  }
};

// Rows of X that lie one after another, by the same thread.
template <typename Shape, typename Problem>
struct RowsInOrder {
  const CUtensorMap* map;
  int rank;
  int first = 0, boxes = 0;

  template <typename Tile>
  __device__ void Take(const Problem& problem, const Tile& tile) {
    const BlockRows<Shape::kBlocks> mine(tile.num_rows, rank);
    first = problem.FirstRow(tile) + mine.first;
    boxes = max((mine.count + Shape::kBoxTokens - 1) / Shape::kBoxTokens, 0);
  }
  __device__ void Copy(char* rows, int k0, uint64_t* full) const {
    constexpr int kBytes = Shape::kBoxTokens * Shape::kRowBytes;
    BarrierExpect(full, boxes * kBytes);
    for (int b = 0; b < boxes; ++b) {
      CopyBox(rows + b * kBytes, map, k0, first + b * Shape::kBoxTokens, full);
    }
  }
};

// Rows of X that may lie anywhere: one 16-byte chunk of every kRowStep-th row a thread.
template <typename Shape, typename Problem>
struct RowsAnywhere {
  static constexpr int kRowStep = Shape::kProducers / 8;  // 8 chunks of 16 bytes a row
  static constexpr int kTokenRows = Shape::kBlockRowsN / kRowStep;

  int rank, row, chunk;
  int offset;  // of this thread's chunk in its first row, swizzled
  const bf16* tokens[kTokenRows];
  int next[kTokenRows];  // of the tile after this one: TokenIndex, or -1

  __device__ RowsAnywhere(int rank, int thread)
      : rank(rank),
        row(thread / 8),
        chunk(thread % 8),
        offset(row * Shape::kRowBytes + ((chunk ^ (row & 7)) * 16)) {}

  template <typename Tile>
  __device__ void FindNext(const Problem& problem, const Tile& tile) {
    const BlockRows<Shape::kBlocks> mine(tile.num_rows, rank);
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      const int c = row + i * kRowStep;
      next[i] = c < mine.count ? problem.TokenIndex(tile, mine.first + c) : -1;
    }
  }
  __device__ void TakeNext(const Problem& problem) {
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      tokens[i] = next[i] < 0 ? nullptr : problem.TokenAt(next[i]) + 8 * chunk;
    }
  }
  __device__ void Copy(char* rows, int k0) const {
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      if (tokens[i] != nullptr) {
        AsyncCopy16(rows + offset + i * kRowStep * Shape::kRowBytes, tokens[i] + k0);
      }
    }
  }
};

// A block's first tile: the weights of its first slabs need nothing of the predecessor, and are
// under way while it ends, in stages that nothing has used.
template <typename Shape>
__device__ __forceinline__ int EarlySlabs(int slabs) {
  return min(slabs, Shape::kStages);
}
// By the leading producer.
template <typename Shape, typename Problem, typename Tile>
__device__ __forceinline__ void CopyEarlyWeights(const Problem& problem, const Tile& tile,
                                                 int slabs, const CUtensorMap* map, char* stages,
                                                 uint64_t* full) {
  TiledWeights<Shape, Problem> weights{problem, map, ClusterRank()};
  weights.Find(tile);
  for (int s = 0; s < EarlySlabs<Shape>(slabs); ++s) {
    weights.Copy(stages + s * Shape::kStageBytes, s * Shape::kSlab, &full[s]);
  }
}

// Of a tile. A guessed one without rows ends with what was brought before that was known.
template <typename Shape, typename Problem>
__device__ __forceinline__ int SlabsOf(const typename Problem::Tile& tile, int slabs) {
  return Problem::guesses() && tile.num_rows == 0 ? EarlySlabs<Shape>(slabs) : slabs;
}

// What the producer warps do, tile after tile. early: slabs whose weights are under way.
template <typename Shape, typename Problem, typename Tiles>
__device__ __forceinline__ void ProduceTiles(const Problem& problem, const Tiles& tiles,
                                             int num_mine, int slabs, int early,
                                             const CUtensorMap* weight_map,
                                             const CUtensorMap* row_map, char* stages,
                                             uint64_t* full, uint64_t* empty) {
  const int thread = static_cast<int>(threadIdx.x) - Shape::kConsumers, rank = ClusterRank();
  const bool leads = thread == 0;
  TiledWeights<Shape, Problem> weights{problem, weight_map, rank};
  if (Problem::early_weights() && num_mine > 0) {
    early = EarlySlabs<Shape>(slabs);
    if (leads) {
      CopyEarlyWeights<Shape>(problem, tiles.At(problem, 0), slabs, weight_map, stages, full);
    }
  }
  WaitForPredecessor();
  LetSuccessorStart();
  RingPosition ring;
  RowsInOrder<Shape, Problem> in_order{row_map, rank};
  RowsAnywhere<Shape, Problem> anywhere(rank, thread);
  if constexpr (!Problem::rows_in_order()) {
    if (num_mine > 0) anywhere.FindNext(problem, tiles.At(problem, 0));
  }
  for (int n = 0; n < num_mine; ++n) {
    const typename Problem::Tile tile = tiles.At(problem, n);
    weights.Find(tile);
    if constexpr (Problem::rows_in_order()) {
      in_order.Take(problem, tile);
    } else {
      anywhere.TakeNext(problem);
    }
    for (int s = 0; s < SlabsOf<Shape, Problem>(tile, slabs); ++s) {
      const int k0 = s * Shape::kSlab;
      char* stage = stages + ring.stage * Shape::kStageBytes;
      if (early > 0) {
        --early;
      } else {
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
        if (leads) weights.Copy(stage, k0, &full[ring.stage]);
      }
      char* rows = stage + Shape::kRowsM * Shape::kRowBytes;
      if constexpr (Problem::rows_in_order()) {
        if (leads) in_order.Copy(rows, k0, &full[ring.stage]);
        BarrierArrive(&full[ring.stage]);
      } else {
        anywhere.Copy(rows, k0);
        BarrierArriveAfterCopies(&full[ring.stage]);
        if (s == 0 && n + 1 < num_mine) anywhere.FindNext(problem, tiles.At(problem, n + 1));
      }
      ring.Advance(Shape::kStages);
    }
  }
  WaitForOwnCopies();
}

}  // namespace orrery::kernels::cuda

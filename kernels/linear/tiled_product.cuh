// The product for many rows of X: Hopper's warpgroup instructions on tiles of 256 weight rows by up
// to 320 rows of X, or up to 64. Same Problem, same order of k, same bits as the streaming product
// (stream_product.cuh).
//
// A tile of many rows belongs to a cluster of two thread blocks: each brings half of the weights to
// both, so that less is read from L2, and has half of the rows, with as wide an instruction as they
// need. Where the weights' stream from memory is the cost, a tile of few rows belongs to one block.
// A ring of stages of 64 columns: the copy engine brings the weights, four producer warps the rows
// of X, 16 bytes a thread, swizzled alike; they may lie anywhere. Two consumer warpgroups share a
// block's rows of X and halve its weights; a half without outputs is skipped. Persistent thread
// blocks.
//
// Of Problem it also reads w and weight_stride: the weights are one matrix. Rows of X it asks for
// in two steps, so that the first, which may read memory, is done a tile ahead:
//   int TokenIndex(tile, c), const bf16* TokenAt(index)
// A Problem that packs_outputs has bfloat16 outputs and takes four of a row at a time where
// `packed` is set:
//   int OutputRow(tile, c), void StoreFour(tile, m, output row, uint2)
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_rows.cuh"
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
  int first, count;
  __device__ BlockRows(int num_rows, int rank) {
    const int half = (num_rows + 15) / 16 * 8;
    first = kBlocks == 1 ? 0 : rank * half;
    count =
        kBlocks == 1 ? num_rows : min(num_rows - first, half);  // none, or fewer, for the second
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

// What the producer warps do, tile after tile.
template <typename Shape, typename Problem, typename Tiles>
__device__ __forceinline__ void ProduceTiles(const Problem& problem, const Tiles& tiles,
                                             int num_mine, int slabs, const CUtensorMap* weight_map,
                                             const CUtensorMap* row_map, char* stages,
                                             uint64_t* full, uint64_t* empty) {
  const int thread = static_cast<int>(threadIdx.x) - Shape::kConsumers, rank = ClusterRank();
  const bool leads = thread == 0;
  TiledWeights<Shape, Problem> weights{problem, weight_map, rank};
  const auto copy_weights = [&](int stage, int k0) {
    if (leads) weights.Copy(stages + stage * Shape::kStageBytes, k0, &full[stage]);
  };
  // The first stages' weights need nothing of the predecessor: they are under way while it ends.
  int early = 0;
  if (Problem::early_weights() && num_mine > 0) {
    weights.Find(tiles.At(problem, 0));
    for (; early < slabs && early < Shape::kStages; ++early) {
      copy_weights(early, early * Shape::kSlab);
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
    weights.Find(tiles.At(problem, n));
    if constexpr (Problem::rows_in_order()) {
      in_order.Take(problem, tiles.At(problem, n));
    } else {
      anywhere.TakeNext(problem);
    }
    for (int s = 0; s < slabs; ++s) {
      const int k0 = s * Shape::kSlab;
      if (early > 0) {
        --early;
      } else {
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
        copy_weights(ring.stage, k0);
      }
      char* rows = stages + ring.stage * Shape::kStageBytes + Shape::kRowsM * Shape::kRowBytes;
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

// Both blocks' stages are free once both are done with them: each is written from both.
template <typename Shape>
__device__ __forceinline__ void ReleaseStage(uint64_t* empty) {
  if (threadIdx.x % 32 != 0) return;
  if constexpr (Shape::kBlocks == 1) {
    BarrierArrive(empty);
  } else {
#pragma unroll
    for (int rank = 0; rank < Shape::kBlocks; ++rank) BarrierArriveAt(empty, rank);
  }
}

// What a consumer warpgroup has of the block.
template <typename Shape>
struct TiledConsumer {
  const char* stages;
  uint64_t* full;
  uint64_t* empty;
  int slabs;
  int first_output;  // of its first product
  typename Shape::Turned turned;
  RingPosition ring;

  // All slabs of a tile that this warpgroup has no part in.
  __device__ void Pass() {
    for (int s = 0; s < slabs; ++s) {
      BarrierWait(&full[ring.stage], ring.phase);
      ReleaseStage<Shape>(&empty[ring.stage]);
      ring.Advance(Shape::kStages);
    }
  }

  template <int kN>
  __device__ __forceinline__ void Multiply(float (&sums)[2][kN / 2]) {
    // Weight rows of the second product, from the first's on.
    constexpr int kSecond = Shape::kGated ? Shape::kFeatures : 64;
    int held = -1;  // stage that the products under way still read
    for (int s = 0; s < slabs; ++s) {
      BarrierWait(&full[ring.stage], ring.phase);
      const char* stage = stages + ring.stage * Shape::kStageBytes;
      const char* rows = stage + Shape::kRowsM * Shape::kRowBytes;
      const char* own = stage + first_output * Shape::kRowBytes;
      // The producers' copies become visible to the tensor cores here: a fence of theirs would wait
      // for the newest of them.
      FenceForTensorCores();
      WgmmaFence();
#pragma unroll
      for (int kk = 0; kk < Shape::kSlab; kk += 16) {
        const uint64_t b = SwizzledDescriptor(rows, kk);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Wgmma64<kN>(sums[m], SwizzledDescriptor(own + m * kSecond * Shape::kRowBytes, kk), b);
        }
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (held >= 0) ReleaseStage<Shape>(&empty[held]);
      held = ring.stage;
      ring.Advance(Shape::kStages);
    }
    WgmmaWait<0>();
    ReleaseStage<Shape>(&empty[held]);
  }

  // Outputs of rows 8 j .. 8 j + 7, as a product's fragment has them.
  template <int kN>
  static __device__ __forceinline__ float4 Outputs(const float (&sums)[2][kN / 2], int m, int j) {
    const float* v = sums[m] + 4 * j;
    if constexpr (Shape::kGated) {
      const float* up = sums[1] + 4 * j;
      return make_float4(GatedProduct(v[0], up[0]), GatedProduct(v[1], up[1]),
                         GatedProduct(v[2], up[2]), GatedProduct(v[3], up[3]));
    } else {
      return make_float4(v[0], v[1], v[2], v[3]);
    }
  }

  template <int kN, typename Problem>
  __device__ __forceinline__ void Tile(const Problem& problem, const typename Problem::Tile& tile,
                                       const BlockRows<Shape::kBlocks>& rows) {
    using Turned = typename Shape::Turned;
    int output_rows[kN / Turned::kRows];  // of this thread's chunks
#pragma unroll
    for (int i = 0; i < kN / Turned::kRows; ++i) {
      const int c = i * Turned::kRows + Turned::row();
      output_rows[i] = c < rows.count ? problem.OutputRow(tile, rows.first + c) : -1;
    }
    float sums[2][kN / 2] = {};  // set, or the registers of all widths would be live at once
    Multiply<kN>(sums);
    if (problem.packed) {
#pragma unroll
      for (int i = 0; i < kN / Turned::kRows; ++i) {
        if (i * Turned::kRows >= rows.count) break;
        const uint4 eight =
            Shape::kGated
                ? turned.Turn(Outputs<kN>(sums, 0, 2 * i), Outputs<kN>(sums, 0, 2 * i + 1))
                : turned.Turn(Outputs<kN>(sums, 0, i), Outputs<kN>(sums, 1, i));
        if (output_rows[i] < 0) continue;
        problem.StoreEight(tile, first_output + Turned::feature(), output_rows[i], eight);
      }
      return;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      if (8 * j >= rows.count) break;
#pragma unroll
      for (int m = 0; m < (Shape::kGated ? 1 : 2); ++m) {
        const float4 v = Outputs<kN>(sums, m, j);
        StoreFragment(problem, tile, first_output + 64 * m + 16 * warp, rows.first + 8 * j,
                      {v.x, v.y, v.z, v.w});
      }
    }
  }

  template <typename Problem>
  __device__ __forceinline__ void ByWidth(const Problem& problem,
                                          const typename Problem::Tile& tile) {
    const BlockRows<Shape::kBlocks> rows(tile.num_rows, ClusterRank());
    if (rows.count <= 0 || first_output >= tile.num_features) return Pass();
    if constexpr (Shape::kBlockRowsN == 64) {
      if (rows.count <= 16) return Tile<16>(problem, tile, rows);
      if (rows.count <= 32) return Tile<32>(problem, tile, rows);
      Tile<64>(problem, tile, rows);
    } else {
      static_assert(Shape::kBlockRowsN == 160);
      if (rows.count <= 64) return Tile<64>(problem, tile, rows);
      if (rows.count <= 96) return Tile<96>(problem, tile, rows);
      if (rows.count <= 128) return Tile<128>(problem, tile, rows);
      if (rows.count <= 144) return Tile<144>(problem, tile, rows);
      Tile<160>(problem, tile, rows);
    }
  }
};

// A block is launched with as many registers a thread as fit (168); the producers give back some of
// theirs. What is taken must have been given back, or the taker waits for ever.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(128 * kProducerRegisters + 256 * kConsumerRegisters <= 384 * 168);

template <typename Shape, typename Problem>
__global__ void __cluster_dims__(Shape::kBlocks, 1, 1) __launch_bounds__(Shape::kThreads, 1)
    TiledProduct(const __grid_constant__ Problem problem, int64_t k,
                 const __grid_constant__ CUtensorMap weights,
                 const __grid_constant__ CUtensorMap rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere plans never choose it: DeviceLimits::wgmma
  extern __shared__ char unaligned[];
  char* stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ TileList<Problem, Shape::kBlocks> tiles;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      BarrierInit(&full[s], Shape::kProducers);
      BarrierInit(&empty[s], Shape::kBlocks * Shape::kConsumers / 32);
    }
    BarrierInitFence();
  }
  ClusterSync();
  const int num_mine = tiles.Make(problem);
  const int slabs = static_cast<int>(k / Shape::kSlab);

  if (thread >= Shape::kConsumers) {
    KeepRegisters<kProducerRegisters>();
    ProduceTiles<Shape>(problem, tiles, num_mine, slabs, &weights, &rows, stages, full, empty);
    ClusterSync();  // the other block may still copy here, and arrive at our barriers
  } else {
    TakeRegisters<kConsumerRegisters>();
    char* turned = stages + Shape::kStages * Shape::kStageBytes;
    TiledConsumer<Shape> consumer{
        stages,
        full,
        empty,
        slabs,
        Shape::kFeatures / 2 * (thread / 128),
        {turned + thread / 128 * Shape::Turned::kBytes, 1 + thread / 128}};
    for (int n = 0; n < num_mine; ++n) consumer.ByWidth(problem, tiles.At(problem, n));
    ClusterSync();
  }
#endif
}

// weights: all of them, the matrix that begins at problem.w. rows: X, where its rows are taken in
// order. REQUIRES: k is a multiple of 64.
template <typename Shape, typename Problem>
void LaunchTiledProduct(const Problem& problem, const TensorView& weights, const TensorView& rows,
                        int64_t max_tiles, int num_sms, cudaStream_t stream) {
  static const bool allowed = [] {
    AllowSharedBytes(TiledProduct<Shape, Problem>, Shape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const int64_t clusters = num_sms / Shape::kBlocks;
  const int64_t grid = Shape::kBlocks * (max_tiles < clusters ? max_tiles : clusters);
  const auto map = [](const TensorView& m, int64_t box_rows) {
    return MakeTensorMap(m.data, m.rows, m.cols, m.row_stride, box_rows);
  };
  Launch(TiledProduct<Shape, Problem>, dim3(static_cast<unsigned>(grid)), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, problem, weights.cols, map(weights, Shape::kBoxRows),
         map(Problem::rows_in_order() ? rows : weights, Shape::kBoxTokens));
}

}  // namespace orrery::kernels::cuda

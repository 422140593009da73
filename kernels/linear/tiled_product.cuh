// The product for many rows of X: Hopper's warpgroup instructions on tiles of 256 weight rows by up
// to 320 rows of X, or up to 64. Same Problem, same order of k, same bits as the streaming product
// (stream_product.cuh).
//
// A tile of many rows belongs to a cluster of two thread blocks: each brings half of the weights to
// both, so that less is read from L2, and has half of the rows, with as wide an instruction as they
// need. Where the weights' stream from memory is the cost, a tile of few rows belongs to one block.
// A ring of stages of 64 columns: the copy engine brings the weights, and rows of X that lie one
// after another; where they lie anywhere four producer warps do, 16 bytes a thread, swizzled alike.
// Two consumer warpgroups share a block's rows of X and halve its weights; a half without outputs
// is skipped. Persistent thread blocks.
//
// Of Problem it also reads w and weight_stride: the weights are one matrix. Where a tile's rows of
// X lie one after another (rows_in_order()) the copy engine brings them too; otherwise they are
// asked for in two steps, so that the first, which may read memory, is done a tile ahead:
//   int FirstRow(tile)                                   in order
//   int TokenIndex(tile, c), const bf16* TokenAt(index)  anywhere
// Where it guesses() the first tiles of the list, a block brings the weights of its first one
// before the list is made; a guessed tile may have no rows:
//   int NumGuessed(), Tile GuessedTile(tile of the list)
// Where its `packed` is set, outputs are bfloat16 and leave eight of a row at a time:
//   int OutputRow(tile, c), void StoreEight(tile, m, output row, uint4)
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_rows.cuh"
#include "kernels/linear/tile_list.cuh"
#include "kernels/linear/tiled_producer.cuh"

namespace orrery::kernels::cuda {

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

  // A tile that this warpgroup has no part in.
  template <typename Problem>
  __device__ void Pass(const typename Problem::Tile& tile) {
    for (int s = 0; s < SlabsOf<Shape, Problem>(tile, slabs); ++s) {
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
    if (rows.count <= 0 || first_output >= tile.num_features) return Pass<Problem>(tile);
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
  const int slabs = static_cast<int>(k / Shape::kSlab);
  int early = 0;
  if constexpr (Problem::guesses()) {
    const int first = static_cast<int>(blockIdx.x);
    if (first < problem.NumGuessed()) {
      early = EarlySlabs<Shape>(slabs);
      if (thread == Shape::kConsumers) {
        CopyEarlyWeights<Shape>(problem, problem.GuessedTile(first), slabs, &weights, stages, full);
      }
    }
  }
  const int num_mine = tiles.Make(problem);

  if (thread >= Shape::kConsumers) {
    KeepRegisters<kProducerRegisters>();
    ProduceTiles<Shape>(problem, tiles, num_mine, slabs, early, &weights, &rows, stages, full,
                        empty);
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

// The product for many rows of X: Hopper's warpgroup instructions on tiles of 256 weight rows by
// 128 rows of X. Same Problem, same order of k, same bits as the streaming product
// (stream_product.cuh).
//
// A ring of stages of 64 columns: the copy engine brings the weights, four producer warps the rows
// of X, 16 bytes a thread, swizzled alike; they may lie anywhere. Two consumer warpgroups share a
// tile's rows of X and halve its weights; a half without outputs is skipped. Persistent thread
// blocks.
//
// Of Problem it also reads w and weight_stride: the weights are one matrix.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/tile_list.cuh"

namespace orrery::kernels::cuda {

template <bool kGated_>
struct TiledShape {
  static constexpr bool kGated = kGated_;
  static constexpr int kRowsM = 256;
  static constexpr int kFeatures = kGated ? 128 : 256;
  static constexpr int kRowsN = 128;
  static constexpr int kSlab = 64;
  static constexpr int kHalves = kGated ? 2 : 1;  // boxes of a tile's weights: gates, ups
  static constexpr int kStages = 4;
  static constexpr int kLag = 2;  // stages a producer issues before it vouches for one
  static constexpr int kConsumers = 256, kProducers = 128;  // threads
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kStageBytes = (kRowsM + kRowsN) * 2 * kSlab;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // and room to align
};

template <typename Shape, typename Problem>
struct TiledProducer {
  static constexpr int kRowStep = Shape::kProducers / 8;  // 8 chunks of 16 bytes a row
  static constexpr int kTokenRows = Shape::kRowsN / kRowStep;
  static constexpr int kRowBytes = 2 * Shape::kSlab;

  const Problem& problem;
  int row, chunk;
  int offset;                       // of this thread's chunk in its first row, swizzled
  int weight_rows[Shape::kHalves];  // the first row of each box
  const bf16* tokens[kTokenRows];

  __device__ TiledProducer(const Problem& p, int thread)
      : problem(p),
        row(thread / 8),
        chunk(thread % 8),
        offset(row * kRowBytes + ((chunk ^ (row & 7)) * 16)) {}

  template <typename Tile>
  __device__ void Start(const Tile& tile) {
    if (row == 0 && chunk == 0) {
#pragma unroll
      for (int h = 0; h < Shape::kHalves; ++h) {
        weight_rows[h] =
            static_cast<int>((problem.Weights(tile, h) - problem.w) / problem.weight_stride);
      }
    }
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      const int c = row + i * kRowStep;
      tokens[i] = c < tile.num_rows ? problem.TokenRow(tile, c) + 8 * chunk : nullptr;
    }
  }
  __device__ void Copy(char* stage, int64_t k0, const CUtensorMap* weights, uint64_t* full) const {
    if (row == 0 && chunk == 0) {  // where outputs end, a box has rows that no output uses
      BarrierExpect(full, Shape::kRowsM * kRowBytes);
#pragma unroll
      for (int h = 0; h < Shape::kHalves; ++h) {
        CopyBox(stage + h * Shape::kFeatures * kRowBytes, weights, static_cast<int>(k0),
                weight_rows[h], full);
      }
    }
    char* rows = stage + Shape::kRowsM * kRowBytes;
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      if (tokens[i] != nullptr) {
        AsyncCopy16(rows + offset + i * kRowStep * kRowBytes, tokens[i] + k0);
      }
    }
  }
};

// A block is launched with as many registers a thread as fit (168); the producers give back some of
// theirs. What is taken must have been given back, or the taker waits for ever.
constexpr int kProducerRegisters = 96, kConsumerRegisters = 200;
static_assert(128 * kProducerRegisters + 256 * kConsumerRegisters <= 384 * 168);

template <typename Shape, typename Problem>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    TiledProduct(const __grid_constant__ Problem problem, int64_t k,
                 const __grid_constant__ CUtensorMap weights) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere plans never choose it: DeviceLimits::wgmma
  extern __shared__ char unaligned[];
  char* stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ TileList<Problem> tiles;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (thread == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      BarrierInit(&full[s], Shape::kProducers);
      BarrierInit(&empty[s], Shape::kConsumers / 32);
    }
    BarrierInitFence();
  }
  const int num_mine = tiles.Make(problem);
  const int slabs = static_cast<int>(k / Shape::kSlab);

  if (thread >= Shape::kConsumers) {
    KeepRegisters<kProducerRegisters>();
    WaitForPredecessor();
    LetSuccessorStart();
    TiledProducer<Shape, Problem> p(problem, thread - Shape::kConsumers);
    RingPosition ring;
    int vouched = 0, issued = 0;
    const auto vouch = [&] {  // this thread's copies for the oldest open stage have landed
      FenceForTensorCores();
      BarrierArrive(&full[vouched++ % Shape::kStages]);
    };
    for (int n = 0; n < num_mine; ++n) {
      p.Start(tiles.At(problem, n));
      for (int s = 0; s < slabs; ++s) {
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
        p.Copy(stages + ring.stage * Shape::kStageBytes, int64_t{s} * Shape::kSlab, &weights,
               &full[ring.stage]);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++issued > Shape::kLag) {
          asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kLag) : "memory");
          vouch();
        }
        ring.Advance(Shape::kStages);
      }
    }
    WaitForOwnCopies();
    while (vouched < issued) vouch();
    return;
  }

  TakeRegisters<kConsumerRegisters>();
  // Weight rows of this group's two products, and outputs of the first.
  const int group = warp / 4, first_output = Shape::kFeatures / 2 * group;
  const int second = Shape::kGated ? Shape::kFeatures : 64;
  RingPosition ring;
  for (int n = 0; n < num_mine; ++n) {
    const auto tile = tiles.At(problem, n);
    float sums[2][64];
    const bool busy = first_output < tile.num_features;
    int held = -1;  // stage that the products under way still read
    for (int s = 0; s < slabs; ++s) {
      BarrierWait(&full[ring.stage], ring.phase);
      const char* stage = stages + ring.stage * Shape::kStageBytes;
      if (busy) {
        const char* rows = stage + Shape::kRowsM * 2 * Shape::kSlab;
        const char* own = stage + first_output * 2 * Shape::kSlab;
        WgmmaFence();
#pragma unroll
        for (int kk = 0; kk < Shape::kSlab; kk += 16) {
          const uint64_t b = SwizzledDescriptor(rows, kk);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            Wgmma64x128x16(sums[m], SwizzledDescriptor(own + m * second * 2 * Shape::kSlab, kk), b,
                           s > 0 || kk > 0);
          }
        }
        WgmmaCommit();
        WgmmaWait<1>();
      }
      if (held >= 0 && thread % 32 == 0) BarrierArrive(&empty[held]);
      held = ring.stage;
      ring.Advance(Shape::kStages);
    }
    WgmmaWait<0>();
    if (thread % 32 == 0) BarrierArrive(&empty[held]);
    if (!busy) continue;
    const int output = first_output + 16 * (warp % 4);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      if (8 * j >= tile.num_rows) break;
#pragma unroll
      for (int m = 0; m < (Shape::kGated ? 1 : 2); ++m) {
        float out[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          out[v] = sums[m][4 * j + v];
          if constexpr (Shape::kGated) out[v] = GatedProduct(out[v], sums[1][4 * j + v]);
        }
        StoreFragment(problem, tile, 64 * m + output, 8 * j, out);
      }
    }
  }
#endif
}

// weights: all of them, the matrix that begins at problem.w. REQUIRES: k is a multiple of 64.
template <bool kGated, typename Problem>
void LaunchTiledProduct(const Problem& problem, const TensorView& weights, int64_t max_tiles,
                        int num_sms, cudaStream_t stream) {
  using Shape = TiledShape<kGated>;
  static const bool allowed = [] {
    AllowSharedBytes(TiledProduct<Shape, Problem>, Shape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const int64_t grid = max_tiles < num_sms ? max_tiles : num_sms;
  Launch(TiledProduct<Shape, Problem>, dim3(static_cast<unsigned>(grid)), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, problem, weights.cols,
         MakeTensorMap(weights.data, weights.rows, weights.cols, weights.row_stride,
                       Shape::kRowsM / Shape::kHalves));
}

}  // namespace orrery::kernels::cuda

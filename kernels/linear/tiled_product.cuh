// The product for many rows of X: Hopper's warpgroup instructions on tiles of 128 weight rows by
// 256 rows of X. Same Problem, same order of k, same bits as the streaming product
// (stream_product.cuh).
//
// Four producer warps copy 16 bytes a thread into a ring of stages of 64 columns, swizzled as the
// instruction wants it; rows of X may lie anywhere. Two consumer warpgroups share a tile's weights
// and halve its rows; a half without rows is skipped. Persistent thread blocks.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/tile_list.cuh"

namespace orrery::kernels::cuda {

template <bool kGated_>
struct TiledShape {
  static constexpr bool kGated = kGated_;
  static constexpr int kRowsM = 128;
  static constexpr int kFeatures = kGated ? 64 : 128;
  static constexpr int kRowsN = 256;
  static constexpr int kSlab = 64;
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
  static constexpr int kWeightRows = Shape::kRowsM / kRowStep;
  static constexpr int kTokenRows = Shape::kRowsN / kRowStep;
  static constexpr int kRowBytes = 2 * Shape::kSlab;

  const Problem& problem;
  int row, chunk;
  int offset;  // of this thread's chunk in its first row, swizzled
  const bf16* weights[Shape::kGated ? 2 : 1];
  int num_features;
  const bf16* tokens[kTokenRows];

  __device__ TiledProducer(const Problem& p, int thread)
      : problem(p),
        row(thread / 8),
        chunk(thread % 8),
        offset(row * kRowBytes + ((chunk ^ (row & 7)) * 16)) {}

  template <typename Tile>
  __device__ void Start(const Tile& tile) {
#pragma unroll
    for (int h = 0; h < (Shape::kGated ? 2 : 1); ++h) {
      weights[h] = problem.Weights(tile, h) + 8 * chunk;
    }
    num_features = tile.num_features;
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      const int c = row + i * kRowStep;
      tokens[i] = c < tile.num_rows ? problem.TokenRow(tile, c) + 8 * chunk : nullptr;
    }
  }
  __device__ void Copy(char* stage, int64_t k0) const {
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      const int feature = row + i * kRowStep % Shape::kFeatures;
      if (feature >= num_features) continue;
      const bf16* from = weights[i * kRowStep / Shape::kFeatures];
      AsyncCopy16(stage + offset + i * kRowStep * kRowBytes,
                  from + feature * problem.weight_stride + k0);
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
    TiledProduct(const __grid_constant__ Problem problem, int64_t k) {
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
        p.Copy(stages + ring.stage * Shape::kStageBytes, int64_t{s} * Shape::kSlab);
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
  const int group = warp / 4, first_row = 128 * group;
  RingPosition ring;
  for (int n = 0; n < num_mine; ++n) {
    const auto tile = tiles.At(problem, n);
    float sums[2][64];
    const bool busy = first_row < tile.num_rows;
    int held = -1;  // stage that the products under way still read
    for (int s = 0; s < slabs; ++s) {
      BarrierWait(&full[ring.stage], ring.phase);
      const char* stage = stages + ring.stage * Shape::kStageBytes;
      if (busy) {
        const char* rows = stage + (Shape::kRowsM + first_row) * 2 * Shape::kSlab;
        WgmmaFence();
#pragma unroll
        for (int kk = 0; kk < Shape::kSlab; kk += 16) {
          const uint64_t b = SwizzledDescriptor(rows, kk);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            Wgmma64x128x16(sums[m], SwizzledDescriptor(stage + m * 64 * 2 * Shape::kSlab, kk), b,
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
    const int output = 16 * (warp % 4);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      if (first_row + 8 * j >= tile.num_rows) break;
#pragma unroll
      for (int m = 0; m < (Shape::kGated ? 1 : 2); ++m) {
        float out[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          out[v] = sums[m][4 * j + v];
          if constexpr (Shape::kGated) out[v] = GatedProduct(out[v], sums[1][4 * j + v]);
        }
        StoreFragment(problem, tile, 64 * m + output, first_row + 8 * j, out);
      }
    }
  }
#endif
}

// REQUIRES: k is a multiple of 64.
template <bool kGated, typename Problem>
void LaunchTiledProduct(const Problem& problem, int64_t k, int64_t max_tiles, int num_sms,
                        cudaStream_t stream) {
  using Shape = TiledShape<kGated>;
  static const bool allowed = [] {
    AllowSharedBytes(TiledProduct<Shape, Problem>, Shape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const int64_t grid = max_tiles < num_sms ? max_tiles : num_sms;
  Launch(TiledProduct<Shape, Problem>, dim3(static_cast<unsigned>(grid)), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, problem, k);
}

}  // namespace orrery::kernels::cuda

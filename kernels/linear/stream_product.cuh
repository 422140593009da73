// The tensor-core product that streams weights: D[n, m] = sum_k W[m, k] X[n, k] in bfloat16 with
// float32 sums, for few to some hundred rows of X, where reading W is the cost.
//
// The weight is the wide operand of mma.m16n8k16 (16 weight rows a step), rows of X are its narrow
// one, so eight rows of X cost what one does. Four producer warps keep a ring of stages in flight
// with 16-byte copies: rows of X may lie anywhere, which is how experts gather theirs without a
// permutation. Rows in shared memory are padded by 16 bytes, so that ldmatrix meets every bank
// once. Thread blocks are persistent: the ring runs on across tiles, and the memory never waits for
// an epilogue.
//
// Each output is one chain over ascending k from zero: exact numerics (linear_cuda.h), unless the
// shape splits k.
//
// Problem says what is multiplied (device struct, passed by value):
//   void Prepare(Shared*, warp, lane)           before the first tile; ends without a barrier
//   static constexpr bool early_weights()       tiles are known before the predecessor is done
//   int NumTiles(const Shared&), Tile GetTile(const Shared&, int)
//   const bf16* Weights(tile, half), int64_t weight_stride
//                                               first weight row of the tile, and the next ones;
//                                               half 1: of the ups of a gated shape
//   const bf16* TokenRow(tile, c)               c < tile.num_rows
//   void Store(tile, m, c, float2)              outputs m and m + 1 of row c; m is even
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/oversized_memory.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/stream_plan.h"
#include "kernels/linear/tile_list.cuh"

namespace orrery::kernels::cuda {

template <int kWarpsM_, int kTilesM_, int kWarpsN_, int kTilesN_, int kSlab_, int kStages_,
          bool kGated_ = false, int kSplitK_ = 1>
struct StreamShape {
  static constexpr int kWarpsM = kWarpsM_, kTilesM = kTilesM_;  // warps, and 16-row tiles a warp
  static constexpr int kWarpsN = kWarpsN_, kTilesN = kTilesN_;  // warps, and 8-row tiles a warp
  static constexpr int kSlab = kSlab_;                          // k a stage, elements
  static constexpr int kStages = kStages_;  // on an H200; PlanStream says how many there are
  // Gated: the upper half of a tile's weight rows are gates, the lower half their ups; a warp has
  // both of a feature.
  static constexpr bool kGated = kGated_;
  static constexpr int kRowsM = 16 * kWarpsM * kTilesM;
  static constexpr int kFeatures = kGated ? kRowsM / 2 : kRowsM;  // outputs a tile
  static constexpr int kRowsN = 8 * kWarpsN * kTilesN;
  // Fast numerics: so many warps deal a tile's steps of k out among them and add up at the end. A
  // chain of steps waits for each product; with few tiles an SM that wait is the cost.
  static constexpr int kSplitK = kSplitK_;
  static constexpr int kConsumers = kWarpsM * kWarpsN * kSplitK;
  static constexpr int kProducers = 4;
  static constexpr int kThreads = 32 * (kConsumers + kProducers);
  static constexpr int kRowBytes = 2 * kSlab + 16;
  static constexpr int kStageBytes = (kRowsM + kRowsN) * kRowBytes;
  static constexpr StreamRing kRing{kStages, kStageBytes + 16};
  static_assert(!kGated || kTilesM % 2 == 0);
  static_assert(kTilesN == 1 || kTilesN % 2 == 0);
  static_assert(kSlab % 16 == 0);

  // First shared-memory row of tile i of warp row wm.
  static __device__ constexpr int TileRow(int wm, int i) {
    if constexpr (kGated) {
      constexpr int kHalf = kTilesM / 2;
      return i / kHalf * (kRowsM / 2) + (wm * kHalf + i % kHalf) * 16;
    } else {
      return (wm * kTilesM + i) * 16;
    }
  }
};

// The copies of one producer thread: one 16-byte chunk of every kRowStep-th row.
template <typename Shape, typename Problem>
struct StreamProducer {
  static constexpr int kChunks = Shape::kSlab / 8;  // 16-byte chunks a row
  static constexpr int kRowStep = Shape::kProducers * 32 / kChunks;
  static constexpr int kTokenRows = (Shape::kRowsN + kRowStep - 1) / kRowStep;
  static constexpr int kHalves = Shape::kGated ? 2 : 1;
  static_assert(Shape::kProducers * 32 % kChunks == 0 && Shape::kFeatures % kRowStep == 0);

  const Problem& problem;
  char* stages;
  int row, chunk;  // first row, and the chunk of every row
  const bf16* weights[kHalves];
  bool whole;
  int num_features;
  const bf16* token_rows[kTokenRows];
  const bf16* next_rows[kTokenRows];  // of the tile after this one, looked up while this one runs

  __device__ StreamProducer(const Problem& p, char* stages, int thread)
      : problem(p), stages(stages), row(thread / kChunks), chunk(thread % kChunks) {}

  __device__ char* To(int stage, int r) const {
    return stages + stage * Shape::kStageBytes + r * Shape::kRowBytes + 16 * chunk;
  }
  // Where this thread's part of a tile's weights begins. Once a tile, so that the loop below is
  // additions and copies: a lone warp that computes addresses between copies cannot fill the
  // memory.
  template <typename Tile>
  __device__ void FindWeights(const Tile& tile) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      weights[h] = problem.Weights(tile, h) + row * problem.weight_stride + 8 * chunk;
    }
    whole = tile.num_features == Shape::kFeatures;
    num_features = tile.num_features;
  }
  __device__ void Weights(int stage, int64_t k0, int64_t k) const {
    if (k0 + 8 * chunk >= k) return;
    const int64_t step = kRowStep * problem.weight_stride;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bf16* from = weights[h] + k0;
      char* to = To(stage, h * Shape::kFeatures + row);
      if (whole) {
#pragma unroll
        for (int i = 0; i < Shape::kFeatures / kRowStep; ++i) {
          AsyncCopy16(to + i * kRowStep * Shape::kRowBytes, from + i * step);
        }
      } else {
        for (int i = 0; row + i * kRowStep < num_features; ++i) {
          AsyncCopy16(to + i * kRowStep * Shape::kRowBytes, from + i * step);
        }
      }
    }
  }
  template <typename Tile>
  __device__ void FindNextTokens(const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      const int c = row + i * kRowStep;
      next_rows[i] = c < tile.num_rows ? problem.TokenRow(tile, c) : nullptr;
    }
  }
  __device__ void TakeNextTokens() {
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) token_rows[i] = next_rows[i];
  }
  __device__ void Tokens(int stage, int64_t k0, int64_t k) const {
    const int64_t column = k0 + 8 * chunk;
    if (column >= k) return;
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      if (token_rows[i] == nullptr) continue;
      AsyncCopy16(To(stage, Shape::kRowsM + row + i * kRowStep), token_rows[i] + column);
    }
  }
};

// The sums of the warps that split k, added in order into those of warp 0. By all consumers.
template <typename Shape>
__device__ __forceinline__ void AddParts(int wk, int place, float* sums) {
  constexpr int kValues = Shape::kTilesM * Shape::kTilesN * 4;
  constexpr int kPlaces = Shape::kWarpsM * Shape::kWarpsN;
  __shared__ float parts[kPlaces][Shape::kSplitK - 1][kValues][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto consumers_meet = [] {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * Shape::kConsumers) : "memory");
  };
  if (wk > 0) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) parts[place][wk - 1][v][lane] = sums[v];
  }
  consumers_meet();
  if (wk == 0) {
#pragma unroll
    for (int other = 0; other < Shape::kSplitK - 1; ++other) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) sums[v] += parts[place][other][v][lane];
    }
  }
  consumers_meet();
}

template <typename Shape, typename Problem>
__global__ void __launch_bounds__(Shape::kThreads)
    StreamProduct(const __grid_constant__ Problem problem, int64_t k, int stages) {
  extern __shared__ __align__(128) char shared_memory[];
  uint64_t* full = reinterpret_cast<uint64_t*>(shared_memory + stages * Shape::kStageBytes);
  uint64_t* empty = full + stages;
  __shared__ TileList<Problem> tiles;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      BarrierInit(&full[s], 32 * Shape::kProducers);
      BarrierInit(&empty[s], Shape::kConsumers);
    }
    BarrierInitFence();
  }
  const int num_mine = tiles.Make(problem);

  if (warp >= Shape::kConsumers) {
    StreamProducer<Shape, Problem> p(problem, shared_memory,
                                     static_cast<int>(threadIdx.x) - 32 * Shape::kConsumers);
    // The first stages' weights need nothing of the predecessor: they are under way while it ends.
    int early = 0;
    if (Problem::early_weights() && num_mine > 0) {
      p.FindWeights(tiles.At(problem, 0));
      for (int64_t k0 = 0; k0 < k && early < stages; k0 += Shape::kSlab, ++early) {
        p.Weights(early, k0, k);
      }
    }
    WaitForPredecessor();
    LetSuccessorStart();
    RingPosition ring;
    if (num_mine > 0) p.FindNextTokens(tiles.At(problem, 0));
    for (int i = 0; i < num_mine; ++i) {
      p.FindWeights(tiles.At(problem, i));
      p.TakeNextTokens();
      for (int64_t k0 = 0; k0 < k; k0 += Shape::kSlab) {
        if (early > 0) {
          --early;
        } else {
          BarrierWait(&empty[ring.stage], ring.phase ^ 1);
          p.Weights(ring.stage, k0, k);
        }
        p.Tokens(ring.stage, k0, k);
        BarrierArriveAfterCopies(&full[ring.stage]);
        ring.Advance(stages);
        if (k0 == 0 && i + 1 < num_mine) p.FindNextTokens(tiles.At(problem, i + 1));
      }
    }
    WaitForOwnCopies();
    return;
  }

  const int wk = warp % Shape::kSplitK, place = warp / Shape::kSplitK;
  const int wm = place / Shape::kWarpsN, wn = place % Shape::kWarpsN;
  RingPosition ring;
  for (int n = 0; n < num_mine; ++n) {
    const auto tile = tiles.At(problem, n);
    float sums[Shape::kTilesM][Shape::kTilesN][4] = {};
    const int first_column = wn * Shape::kTilesN * 8;
    for (int64_t k0 = 0; k0 < k; k0 += Shape::kSlab) {
      const int steps = static_cast<int>((k - k0 < Shape::kSlab ? k - k0 : Shape::kSlab) / 16);
      BarrierWait(&full[ring.stage], ring.phase);
      const char* stage = shared_memory + ring.stage * Shape::kStageBytes;
      const char* tokens = stage + (Shape::kRowsM + first_column) * Shape::kRowBytes;
      if (first_column < tile.num_rows) {
#pragma unroll 4
        for (int s = wk; s < steps; s += Shape::kSplitK) {
          uint32_t a[Shape::kTilesM][4];
#pragma unroll
          for (int i = 0; i < Shape::kTilesM; ++i) {
            LoadMatrix4(a[i], stage + (Shape::TileRow(wm, i) + lane % 16) * Shape::kRowBytes +
                                  s * 32 + lane / 16 * 16);
          }
          if constexpr (Shape::kTilesN == 1) {
            uint32_t b[2];
            LoadMatrix2(b, tokens + lane % 8 * Shape::kRowBytes + s * 32 + lane / 8 % 2 * 16);
#pragma unroll
            for (int i = 0; i < Shape::kTilesM; ++i) Mma16816(sums[i][0], a[i], b[0], b[1]);
          } else {
#pragma unroll
            for (int j = 0; j < Shape::kTilesN; j += 2) {
              if (first_column + 8 * j >= tile.num_rows) break;
              uint32_t b[4];
              LoadMatrix4(b, tokens + (8 * j + lane / 16 * 8 + lane % 8) * Shape::kRowBytes +
                                 s * 32 + lane / 8 % 2 * 16);
#pragma unroll
              for (int i = 0; i < Shape::kTilesM; ++i) {
                Mma16816(sums[i][j], a[i], b[0], b[1]);
                Mma16816(sums[i][j + 1], a[i], b[2], b[3]);
              }
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(&empty[ring.stage]);
      ring.Advance(stages);
    }

    if constexpr (Shape::kSplitK > 1) {
      AddParts<Shape>(wk, place, &sums[0][0][0]);
      if (wk > 0) continue;
    }
#pragma unroll
    for (int j = 0; j < Shape::kTilesN; ++j) {
      if (first_column + 8 * j >= tile.num_rows) break;
      constexpr int kOutTiles = Shape::kGated ? Shape::kTilesM / 2 : Shape::kTilesM;
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        float out[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          out[v] = sums[i][j][v];
          if constexpr (Shape::kGated) {
            out[v] = GatedProduct(out[v], sums[i + kOutTiles][j][v]);
          }
        }
        StoreFragment(problem, tile, Shape::TileRow(wm, i), first_column + 8 * j, out);
      }
    }
  }
}

// One launch: as many blocks as fit, at most one a tile.
template <typename Shape, typename Problem>
void LaunchStreamProduct(const Problem& problem, int64_t k, int64_t max_tiles,
                         const DeviceLimits& limits, cudaStream_t stream) {
  constexpr int64_t kMaxStages = 64;
  struct Residency {
    StreamPlan plan;
    int64_t static_bytes = 0;
    int blocks_per_sm = 0;
  };
  static const Residency residency = [&] {
    const auto kernel = StreamProduct<Shape, Problem>;
    Residency r;
    r.static_bytes = StaticSharedBytes(kernel);
    r.plan = PlanStream(Shape::kRing, r.static_bytes, limits);
    const StreamPlan deepest = PlanLoneTiles(Shape::kRing, r.static_bytes, kMaxStages, limits);
    AllowPlannedBytes(kernel, std::max(r.plan.shared_bytes, deepest.shared_bytes), limits);
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &r.blocks_per_sm, kernel, Shape::kThreads, static_cast<size_t>(r.plan.shared_bytes)));
    CHECK_GT(r.blocks_per_sm, 0);
    return r;
  }();
  const int64_t resident = int64_t{limits.num_sms} * residency.blocks_per_sm;
  const int64_t grid = max_tiles < resident ? max_tiles : resident;
  StreamPlan plan = residency.plan;
  if (max_tiles <= limits.num_sms) {
    const int64_t steps = (k + Shape::kSlab - 1) / Shape::kSlab;
    plan = PlanLoneTiles(Shape::kRing, residency.static_bytes, std::min(steps, kMaxStages), limits);
  }
  Launch(StreamProduct<Shape, Problem>, dim3(static_cast<unsigned>(grid)), dim3(Shape::kThreads),
         static_cast<size_t>(plan.shared_bytes), stream, problem, k, plan.stages);
}

}  // namespace orrery::kernels::cuda

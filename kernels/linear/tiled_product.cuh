// The product for many rows of X: Hopper's warpgroup instructions on tiles of 256 weight rows by up
// to 320 rows of X. Same Problem, same order of k, same bits as the streaming product
// (stream_product.cuh).
//
// A tile belongs to a cluster of two thread blocks: each brings half of the weights to both, so
// that less is read from L2, and has half of the rows, with as wide an instruction as they need. A
// ring of stages of 64 columns: the copy engine brings the weights, four producer warps the rows of
// X, 16 bytes a thread, swizzled alike; they may lie anywhere. Two consumer warpgroups share a
// block's rows of X and halve its weights; a half without outputs is skipped. Persistent thread
// blocks.
//
// Of Problem it also reads w and weight_stride: the weights are one matrix. A Problem that
// packs_outputs has bfloat16 outputs and takes four of a row at a time where `packed` is set:
//   int OutputRow(tile, c), void StoreFour(tile, m, output row, uint2)
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_rows.cuh"
#include "kernels/linear/tile_list.cuh"

namespace orrery::kernels::cuda {

template <bool kGated_>
struct TiledShape {
  static constexpr bool kGated = kGated_;
  static constexpr int kBlocks = 2;  // of a cluster
  static constexpr int kRowsM = 256;
  static constexpr int kBoxRows = kRowsM / kBlocks;  // weights that a block brings
  static constexpr int kFeatures = kGated ? 128 : 256;
  static constexpr int kBlockRowsN = 160;
  static constexpr int kRowsN = kBlocks * kBlockRowsN;
  static constexpr int kSlab = 64;
  static constexpr int kRowBytes = 2 * kSlab;
  static constexpr int kStages = 4;
  static constexpr int kConsumers = 256, kProducers = 128;  // threads
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kStageBytes = (kRowsM + kBlockRowsN) * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // and room to align
};

// The rows of a cluster's tile that one block has.
struct BlockRows {
  int first, count;
  __device__ BlockRows(int num_rows, int rank) {
    const int half = (num_rows + 15) / 16 * 8;
    first = rank * half;
    count = min(num_rows - first, half);  // none, or fewer, for the second block
  }
};

template <typename Shape, typename Problem>
struct TiledProducer {
  static constexpr int kRowStep = Shape::kProducers / 8;  // 8 chunks of 16 bytes a row
  static constexpr int kTokenRows = Shape::kBlockRowsN / kRowStep;

  const Problem& problem;
  int rank, row, chunk;
  int offset;      // of this thread's chunk in its first row, swizzled
  int weight_row;  // the first that this block brings
  const bf16* tokens[kTokenRows];

  __device__ TiledProducer(const Problem& p, int thread)
      : problem(p),
        rank(ClusterRank()),
        row(thread / 8),
        chunk(thread % 8),
        offset(row * Shape::kRowBytes + ((chunk ^ (row & 7)) * 16)) {}

  __device__ bool leads() const { return row == 0 && chunk == 0; }

  template <typename Tile>
  __device__ void Start(const Tile& tile) {
    if (leads()) {
      const bf16* first = problem.Weights(tile, Shape::kGated ? rank : 0);
      weight_row = static_cast<int>((first - problem.w) / problem.weight_stride) +
                   (Shape::kGated ? 0 : rank * Shape::kBoxRows);
    }
    const BlockRows mine(tile.num_rows, rank);
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      const int c = row + i * kRowStep;
      tokens[i] = c < mine.count ? problem.TokenRow(tile, mine.first + c) + 8 * chunk : nullptr;
    }
  }
  __device__ void Copy(char* stage, int64_t k0, const CUtensorMap* weights, uint64_t* full) const {
    if (leads()) {  // where outputs end, a box has rows that no output uses
      BarrierExpect(full, Shape::kRowsM * Shape::kRowBytes);
      CopyBoxToCluster(stage + rank * Shape::kBoxRows * Shape::kRowBytes, weights,
                       static_cast<int>(k0), weight_row, full, (1 << Shape::kBlocks) - 1);
    }
    char* rows = stage + Shape::kRowsM * Shape::kRowBytes;
#pragma unroll
    for (int i = 0; i < kTokenRows; ++i) {
      if (tokens[i] != nullptr) {
        AsyncCopy16(rows + offset + i * kRowStep * Shape::kRowBytes, tokens[i] + k0);
      }
    }
  }
};

// Both blocks' stages are free once both are done with them: each is written from both.
template <typename Shape>
__device__ __forceinline__ void ReleaseStage(uint64_t* empty) {
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int rank = 0; rank < Shape::kBlocks; ++rank) BarrierArriveAt(empty, rank);
}

// Outputs output .. output + 15 of eight rows (StoreFragment) as full sectors: a transposition
// gives each lane two pairs of outputs of row lane / 4, and neighbours exchange one.
template <typename Problem>
__device__ __forceinline__ void StorePacked(const Problem& problem,
                                            const typename Problem::Tile& tile, int output,
                                            int output_row, const float (&v)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool odd = t % 2 == 1;
  const uint32_t low = TransposeMatrix(PackBf16(v[0], v[1]));
  const uint32_t high = TransposeMatrix(PackBf16(v[2], v[3]));
  const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
  const uint2 four = odd ? make_uint2(other, high) : make_uint2(low, other);
  if (output_row >= 0) {
    problem.StoreFour(tile, output + (odd ? 6 + 2 * t : 2 * t), output_row, four);
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

  template <int kN, typename Problem>
  __device__ __forceinline__ void Tile(const Problem& problem, const typename Problem::Tile& tile,
                                       const BlockRows& rows) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int output_rows[kN / 8];
    if constexpr (Problem::packs_outputs()) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const int c = 8 * j + lane / 4;
        output_rows[j] = c < rows.count ? problem.OutputRow(tile, rows.first + c) : -1;
      }
    }
    float sums[2][kN / 2] = {};  // set, or the registers of all widths would be live at once
    Multiply<kN>(sums);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      if (8 * j >= rows.count) break;
#pragma unroll
      for (int m = 0; m < (Shape::kGated ? 1 : 2); ++m) {
        float out[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          out[v] = sums[m][4 * j + v];
          if constexpr (Shape::kGated) out[v] = GatedProduct(out[v], sums[1][4 * j + v]);
        }
        const int output = first_output + 64 * m + 16 * (warp % 4);
        if constexpr (Problem::packs_outputs()) {
          if (problem.packed) {
            StorePacked(problem, tile, output, output_rows[j], out);
            continue;
          }
        }
        StoreFragment(problem, tile, output, rows.first + 8 * j, out);
      }
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
                 const __grid_constant__ CUtensorMap weights) {
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
    WaitForPredecessor();
    LetSuccessorStart();
    TiledProducer<Shape, Problem> p(problem, thread - Shape::kConsumers);
    RingPosition ring;
    for (int n = 0; n < num_mine; ++n) {
      p.Start(tiles.At(problem, n));
      for (int s = 0; s < slabs; ++s) {
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
        p.Copy(stages + ring.stage * Shape::kStageBytes, int64_t{s} * Shape::kSlab, &weights,
               &full[ring.stage]);
        BarrierArriveAfterCopies(&full[ring.stage]);
        ring.Advance(Shape::kStages);
      }
    }
    WaitForOwnCopies();
    ClusterSync();  // the other block may still copy here, and arrive at our barriers
  } else {
    TakeRegisters<kConsumerRegisters>();
    TiledConsumer<Shape> consumer{stages, full, empty, slabs,
                                  Shape::kFeatures / 2 * (thread / 128)};
    for (int n = 0; n < num_mine; ++n) {
      const auto tile = tiles.At(problem, n);
      const BlockRows rows(tile.num_rows, ClusterRank());
      if (rows.count <= 0 || consumer.first_output >= tile.num_features) {
        consumer.Pass();
      } else if (rows.count <= 64) {
        consumer.template Tile<64>(problem, tile, rows);
      } else if (rows.count <= 96) {
        consumer.template Tile<96>(problem, tile, rows);
      } else if (rows.count <= 128) {
        consumer.template Tile<128>(problem, tile, rows);
      } else if (rows.count <= 144) {
        consumer.template Tile<144>(problem, tile, rows);
      } else {
        consumer.template Tile<160>(problem, tile, rows);
      }
    }
    ClusterSync();
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
  const int64_t clusters = num_sms / Shape::kBlocks;
  const int64_t grid = Shape::kBlocks * (max_tiles < clusters ? max_tiles : clusters);
  Launch(
      TiledProduct<Shape, Problem>, dim3(static_cast<unsigned>(grid)), dim3(Shape::kThreads),
      Shape::kSharedBytes, stream, problem, weights.cols,
      MakeTensorMap(weights.data, weights.rows, weights.cols, weights.row_stride, Shape::kBoxRows));
}

}  // namespace orrery::kernels::cuda

// The experts' products of training on Hopper's warpgroup instructions, all three of them one
// kernel: tiles of 128 by 256, slabs of 64 terms.
//
//   kForward  out[slot, n] = sum_k a[slot / slots_per_row, k] w_e[n, k], by the experts' lists
//   kInput    out[r, n] = sum_k a[r, k] w_e[k, n]                    over sorted rows r
//   kWeight   dw_e[m, n] += sum over the expert's sorted rows r of a[r, m] b[r, n]
//
// The copy engine fills a ring of stages, one instruction a box; rows that lie anywhere
// (kForward's) are copied by four producer warps, 16 bytes a thread. Two consumer warpgroups take
// 64 rows of the tile each, and one without rows has nothing to do. Operands lie as they are in
// memory: where sums run over rows, the instruction reads them transposed. Persistent thread
// blocks.
#pragma once

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_operands.cuh"
#include "kernels/experts/expert_tiles.cuh"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/linear/tile_list.cuh"
#include "kernels/linear/turned_outputs.cuh"

namespace orrery::kernels::cuda {

enum class ExpertsProduct { kForward, kInput, kWeight };

constexpr int kTileM = 128, kTileN = 256, kSlab = 64;

struct ExpertsTile {
  int expert, m, n;      // first row (of the list, or of dw_e), first column
  int num_m, num_n;      // valid ones
  int row;               // first sorted row: of the tile, or of the expert
  int depth;             // terms of a sum
  const int32_t* slots;  // kForward: of the tile's rows
};

template <ExpertsProduct kProduct>
struct ExpertsGradProblem {
  static constexpr bool kWeight = kProduct == ExpertsProduct::kWeight;
  static constexpr bool kLists = kProduct == ExpertsProduct::kForward;
  using Shared = ExpertTiles;
  using Tile = ExpertsTile;
  using Lines = LinedOutputs<std::conditional_t<kWeight, float, bf16>>;

  // kForward.
  const bf16* a;
  int64_t a_stride;
  int slots_per_row;
  const int32_t* counts;
  const int32_t* slots;
  int64_t capacity;
  // The others: sorted rows [first[e], first[e + 1]) are expert e's.
  const int32_t* first;

  void* out;
  int64_t out_stride;
  int num_experts, weight_rows, m, n, depth;  // weight_rows: of an expert; m: kWeight alone

  __device__ int Rows(int e) const {
    return kLists ? min(counts[e], static_cast<int>(capacity)) : first[e + 1] - first[e];
  }
  __device__ int RowTiles(int e) const {
    const int rows = Rows(e);
    return ((kWeight && rows > 0 ? m : rows) + kTileM - 1) / kTileM;
  }
  __device__ int ColumnTiles() const { return (n + kTileN - 1) / kTileN; }

  // For TileList. Contains the wait for the predecessor, which made the lists.
  __device__ void Prepare(Shared* shared, int warp, int lane) const {
    WaitForPredecessor();
    if (warp != 0) return;
    shared->Make(num_experts, lane, [this](int e) { return RowTiles(e) * ColumnTiles(); });
  }
  __device__ int NumTiles(const Shared& shared) const { return shared.first[num_experts]; }
  __device__ Tile GetTile(const Shared& shared, int t) const {
    const int e = shared.ExpertOf(t, num_experts);
    const int row_tiles = RowTiles(e), local = t - shared.first[e], rows = Rows(e);
    Tile tile;
    tile.expert = e;
    tile.m = local % row_tiles * kTileM;
    tile.n = local / row_tiles * kTileN;
    tile.num_m = min((kWeight ? m : rows) - tile.m, kTileM);
    tile.num_n = min(n - tile.n, kTileN);
    tile.row = kLists ? 0 : first[e] + (kWeight ? 0 : tile.m);
    tile.depth = kWeight ? rows : depth;
    tile.slots = kLists ? slots + e * capacity + tile.m : nullptr;
    return tile;
  }
  // Of the tile's row r; -1 past the last.
  __device__ int OutputRow(const Tile& tile, int r) const {
    if (r >= tile.num_m) return -1;
    return kLists ? tile.slots[r] : kWeight ? tile.expert * m + tile.m + r : tile.row + r;
  }
};

struct ExpertsGradShape {
  static constexpr int kStages = 4;
  static constexpr int kConsumers = 256, kProducers = 128;  // threads
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kTileTable = 128;  // tiles of a block that are found at once
  static constexpr int kStageBytes = (kTileM + kTileN) * 2 * kSlab;
  static constexpr int kSharedBytes = kStages * kStageBytes +
                                      kConsumers / 32 * LinedOutputs<float>::kBytes +
                                      1024;  // and room to align
  // A block is launched with 168 registers a thread; producers give back some of theirs.
  static constexpr int kProducerRegisters = 96, kConsumerRegisters = 200;
  static_assert(kProducers * kProducerRegisters + kConsumers * kConsumerRegisters <=
                kThreads * 168);
};

// Rows of boxes of the two operands.
template <ExpertsProduct kProduct>
struct ExpertsBoxes {
  static constexpr int kRowsA = kProduct == ExpertsProduct::kInput ? kTileM : kSlab;
  static constexpr int kRowsB = kProduct == ExpertsProduct::kForward ? kTileN : kSlab;
  static constexpr int kBytesA = kProduct == ExpertsProduct::kForward ? 0 : kTileM * kSlab * 2;
  static constexpr int kBytesB = kTileN * kSlab * 2;
};

// What the copy engine brings of a slab. One thread; the barrier gets one arrival.
template <ExpertsProduct kProduct>
__device__ __forceinline__ void CopyBoxes(const ExpertsGradProblem<kProduct>& problem,
                                          const ExpertsTile& tile, int k0, const CUtensorMap* a,
                                          const CUtensorMap* b, char* stage, uint64_t* full) {
  using Boxes = ExpertsBoxes<kProduct>;
  char* right = stage + kTileM * 128;
  BarrierExpect(full, Boxes::kBytesA + Boxes::kBytesB);
  const int weight_row = tile.expert * problem.weight_rows;
  if constexpr (kProduct == ExpertsProduct::kForward) {
    CopyBox(right, b, k0, weight_row + tile.n, full);
  } else {
    constexpr bool kWeight = kProduct == ExpertsProduct::kWeight;
    if constexpr (kWeight) {
#pragma unroll
      for (int p = 0; p < kTileM / 64; ++p) {
        CopyBox(stage + p * kSlab * 128, a, tile.m + 64 * p, tile.row + k0, full);
      }
    } else {
      CopyBox(stage, a, k0, tile.row, full);
    }
#pragma unroll
    for (int p = 0; p < kTileN / 64; ++p) {
      CopyBox(right + p * kSlab * 128, b, tile.n + 64 * p, (kWeight ? tile.row : weight_row) + k0,
              full);
    }
  }
}

// kForward's rows: this thread's 16 bytes of rows thread / 8 + 16 i.
struct ExpertsRowCopier {
  static constexpr int kRowStep = ExpertsGradShape::kProducers / 8;
  static constexpr int kOwn = kTileM / kRowStep;
  int row, column, offset;
  const bf16* rows[kOwn];
  int next[kOwn];  // of the tile after this one: slots, or -1

  __device__ explicit ExpertsRowCopier(int thread)
      : row(thread / 8),
        column(8 * (thread % 8)),
        offset(row * 128 + ((thread % 8) ^ (row & 7)) * 16) {}
  __device__ void FindNext(const ExpertsTile& tile) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = row + i * kRowStep;
      next[i] = r < tile.num_m ? tile.slots[r] : -1;
    }
  }
  template <typename Problem>
  __device__ void TakeNext(const Problem& problem) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      rows[i] = next[i] < 0
                    ? nullptr
                    : problem.a + next[i] / problem.slots_per_row * problem.a_stride + column;
    }
  }
  // Zeros past the last term.
  __device__ void Copy(char* stage, int k0, int depth) const {
    const bool valid = k0 + column < depth;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (rows[i] != nullptr) {
        AsyncCopy16OrZero(stage + offset + i * kRowStep * 128, rows[i] + (valid ? k0 : 0), valid);
      }
    }
  }
};

// Added to float32 memory that no other thread touches: sent to the L2, not waited for.
__device__ __forceinline__ void AddVector(float* to, float4 v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

// A warp's 16 rows of the tile, 128 columns from `column` on, a line of each at a time. rows: of
// out, where this lane's loads go, or -1.
template <typename T, typename Problem>
__device__ __forceinline__ void StoreLines(const Problem& problem, const ExpertsTile& tile,
                                           const int (&rows)[4], int column,
                                           const LinedOutputs<T>& lines, const float (&sums)[64]) {
  using Lines = LinedOutputs<T>;
  T* const out = static_cast<T*>(problem.out) + tile.n + column + Lines::column();
#pragma unroll
  for (int c = 0; c < 128; c += Lines::kColumns) {
    if (column + c >= tile.num_n) break;
    lines.Put(sums + c / 8 * 4);
    const bool valid = column + c + Lines::column() < tile.num_n;
#pragma unroll
    for (int i = 0; i < Lines::kLoads; ++i) {
      if (!valid || rows[i] < 0) continue;
      T* to = out + rows[i] * problem.out_stride + c;
      if constexpr (Problem::kWeight) {
        AddVector(to, lines.template Get<float4>(i));
      } else {
        *reinterpret_cast<uint4*>(to) = lines.template Get<uint4>(i);
      }
    }
  }
}

template <ExpertsProduct kProduct>
__global__ void __launch_bounds__(ExpertsGradShape::kThreads, 1)
    ExpertsGradKernel(const __grid_constant__ ExpertsGradProblem<kProduct> problem,
                      const __grid_constant__ CUtensorMap map_a,
                      const __grid_constant__ CUtensorMap map_b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never chosen: DeviceLimits::wgmma
  using Shape = ExpertsGradShape;
  using Problem = ExpertsGradProblem<kProduct>;
  constexpr bool kWeight = kProduct == ExpertsProduct::kWeight;
  constexpr bool kLists = Problem::kLists;
  constexpr bool kColumnsB = kProduct != ExpertsProduct::kForward;
  extern __shared__ char unaligned[];
  char* stages = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ TileList<Problem, 1, Shape::kTileTable> tiles;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (thread == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      BarrierInit(&full[s], kLists ? Shape::kProducers : 1);
      BarrierInit(&empty[s], Shape::kConsumers / 32);
    }
    BarrierInitFence();
  }
  const int num_mine = tiles.Make(problem);
  LetSuccessorStart();

  if (thread >= Shape::kConsumers) {
    KeepRegisters<Shape::kProducerRegisters>();
    const int producer = thread - Shape::kConsumers;
    if (!kLists && producer != 0) return;
    ExpertsRowCopier copier(producer);
    RingPosition ring;
    if (kLists && num_mine > 0) copier.FindNext(tiles.At(problem, 0));
    for (int i = 0; i < num_mine; ++i) {
      const ExpertsTile tile = tiles.At(problem, i);
      if constexpr (kLists) copier.TakeNext(problem);
      for (int k0 = 0; k0 < tile.depth; k0 += kSlab) {
        char* stage = stages + ring.stage * Shape::kStageBytes;
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
        if (producer == 0) {
          CopyBoxes(problem, tile, k0, &map_a, &map_b, stage, &full[ring.stage]);
        }
        if constexpr (kLists) {
          copier.Copy(stage, k0, tile.depth);
          BarrierArriveAfterCopies(&full[ring.stage]);
          if (k0 == 0 && i + 1 < num_mine) copier.FindNext(tiles.At(problem, i + 1));
        } else {
          BarrierArrive(&full[ring.stage]);
        }
        ring.Advance(Shape::kStages);
      }
    }
    WaitForOwnCopies();
    return;
  }

  TakeRegisters<Shape::kConsumerRegisters>();
  using Lines = typename Problem::Lines;
  const Lines lines{stages + Shape::kStages * Shape::kStageBytes + warp * Lines::kBytes};
  const int first_row = 64 * (warp / 4), warp_row = 16 * warp;
  RingPosition ring;
  for (int i = 0; i < num_mine; ++i) {
    const ExpertsTile tile = tiles.At(problem, i);
    int output_rows[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) output_rows[j] = problem.OutputRow(tile, warp_row + lines.row(j));
    float sums[2][64];
    const bool busy = first_row < tile.num_m;
    int held = -1;  // stage that the products under way still read
    for (int k0 = 0; k0 < tile.depth; k0 += kSlab) {
      BarrierWait(&full[ring.stage], ring.phase);
      const char* a = stages + ring.stage * Shape::kStageBytes;
      const char* b = a + kTileM * 128;
      // Here the producers' copies become visible to the tensor cores: a fence of theirs would wait
      // for the newest of them.
      if constexpr (kLists) FenceForTensorCores();
      if (busy) {
        WgmmaFence();
#pragma unroll
        for (int kk = 0; kk < kSlab; kk += 16) {
          const uint64_t left = kWeight ? ColumnOperand(a, kSlab, kk, first_row)
                                        : RowOperand(a, kTileM, first_row, kk);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint64_t right = kColumnsB ? ColumnOperand(b, kSlab, kk, 128 * h)
                                             : RowOperand(b, kTileN, 128 * h, kk);
            WgmmaShared<kWeight, kColumnsB>(sums[h], left, right, k0 > 0 || kk > 0);
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
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      FenceRegisters(sums[h]);
      StoreLines(problem, tile, output_rows, 128 * h, lines, sums[h]);
    }
  }
#endif
}

template <ExpertsProduct kProduct>
void LaunchExpertsGrad(const ExpertsGradProblem<kProduct>& problem, const TensorView& a,
                       const TensorView& b, int64_t max_tiles, int num_sms, cudaStream_t stream) {
  using Boxes = ExpertsBoxes<kProduct>;
  static const bool allowed = [] {
    AllowSharedBytes(ExpertsGradKernel<kProduct>, ExpertsGradShape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const int64_t grid = max_tiles < num_sms ? max_tiles : num_sms;
  Launch(ExpertsGradKernel<kProduct>, dim3(static_cast<unsigned>(grid)),
         dim3(ExpertsGradShape::kThreads), ExpertsGradShape::kSharedBytes, stream, problem,
         MakeTensorMap(a.data, a.rows, a.cols, a.row_stride, Boxes::kRowsA),
         MakeTensorMap(b.data, b.rows, b.cols, b.row_stride, Boxes::kRowsB));
}

}  // namespace orrery::kernels::cuda

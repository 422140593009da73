// What the kernels of attention_grad_warpgroups.cu share: shapes of blocks and of shared memory,
// copies of rows into it, products, and stores of finished rows.
#pragma once

#include "kernels/attention/attention_grad_parts.cuh"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/wgmma_operands.cuh"

namespace orrery::kernels::cuda::grad_warpgroups {

using bf16 = BFloat16;
using Params = AttentionGradParams<bf16>;

inline constexpr int kStep = 64;  // rows that arrive at a time
inline constexpr int kStages = 3;

template <int D>
struct GradShape {
  static constexpr int kGroups = D == 128 ? 2 : 1;  // warpgroups
  static constexpr int kOwn = 64 * kGroups;         // rows of the block's tile
  static constexpr int kThreads = 128 * kGroups;
  static constexpr int kQueryBlocks = D == 128 ? 1 : 3;  // an SM, by registers
  static constexpr int kKeyBlocks = D == 128 ? 1 : 2;
  static constexpr int kOwnBytes = kOwn * D * 2;
  static inline constexpr int kStepBytes = kStep * D * 2;
  static constexpr int kStageBytes = 2 * kStepBytes;
  static constexpr int kPartialFloats = 2 * kOwn * D;
  static constexpr int kStatBytes = 2 * kStep * 4;  // of a stage: log-sums and deltas
  static constexpr int kSharedBytes =
      2 * kOwnBytes + kStages * (kStageBytes + kStatBytes) + 1024;  // and room to align
};

__device__ __forceinline__ void AsyncCopy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// The oldest stage under way has landed, for everybody; the one before it is free.
__device__ __forceinline__ void AwaitStage() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
  FenceForTensorCores();
  __syncthreads();
}

// f(row of the matrix, chunk, offset in shared memory) for each 16 bytes of kRows rows.
template <int D, int kRows, typename F>
__device__ __forceinline__ void ForChunks(const F& f) {
  constexpr int kChunks = D / 8, kRowStep = GradShape<D>::kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int i = 0; i < kRows / kRowStep; ++i) {
    const int row = first + i * kRowStep;
    f(row, chunk, PanelOffset(kRows, row, chunk));
  }
}

// Rows `first` to `end` (at most kRows) of keys and of values.
template <int D, int kRows>
__device__ __forceinline__ void CopyKeysValues(const Params& p, int kv_head, int first, int end,
                                               char* keys, char* values) {
  const bf16* k = p.qkv.data + p.KeyColumn(kv_head);
  const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * D;
  ForChunks<D, kRows>([&](int row, int chunk, int offset) {
    const bool valid = first + row < end;
    const bf16* from = k + (valid ? first + row : first) * p.qkv.stride + chunk * 8;
    AsyncCopy16OrZero(keys + offset, from, valid);
    AsyncCopy16OrZero(values + offset, from + to_values, valid);
  });
}

// Packed queries `first` to `end` and the gradients of their outputs.
template <int D, int kRows>
__device__ __forceinline__ void CopyQueries(const Params& p, int kv_head, int first, int end,
                                            char* queries, char* douts) {
  const int group = p.group.group;
  ForChunks<D, kRows>([&](int index, int chunk, int offset) {
    const bool valid = first + index < end;
    const int packed = valid ? first + index : first, row = p.group.RowOf(packed);
    const int column = (kv_head * group + packed - row * group) * D + chunk * 8;
    AsyncCopy16OrZero(queries + offset, p.qkv.Row(row) + column, valid);
    AsyncCopy16OrZero(douts + offset, p.dout.Row(row) + column, valid);
  });
}

// sums[64, 64] = own[64, D] other[64, D]^T.
template <int D>
__device__ __forceinline__ void Scores(const char* own, int first, const char* other,
                                       float (&sums)[32]) {
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    WgmmaShared<false, false>(sums, RowOperand(own, GradShape<D>::kOwn, first, k),
                              RowOperand(other, kStep, 0, k), k > 0);
  }
}
// sums[64, D] += left[64, 64] other[64, D].
template <int D>
__device__ __forceinline__ void AddProduct(const uint32_t (&left)[kStep / 16][4], const char* other,
                                           float (&sums)[D / 2]) {
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    WgmmaRegisters(sums, left[k], ColumnOperand(other, kStep, 16 * k, 0));
  }
}
__device__ __forceinline__ void PackAll(const float (&sums)[32], uint32_t (&left)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) PackOperand(sums, k, left[k]);
}

// A warp's 16 rows of sums, times a factor each, through shared memory (rows `first` on of a matrix
// of kOwn rows that nobody reads any more) to rows of the batch: to(row) is null past the end.
template <int D, typename F>
__device__ __forceinline__ void StoreRows(const float (&sums)[D / 2], float factor0, float factor1,
                                          char* matrix, int first, const F& to) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    char* top = matrix + PanelOffset(GradShape<D>::kOwn, first + g, j) + 4 * t;
    char* bottom = matrix + PanelOffset(GradShape<D>::kOwn, first + g + 8, j) + 4 * t;
    *reinterpret_cast<uint32_t*>(top) = PackBf16(sums[4 * j] * factor0, sums[4 * j + 1] * factor0);
    *reinterpret_cast<uint32_t*>(bottom) =
        PackBf16(sums[4 * j + 2] * factor1, sums[4 * j + 3] * factor1);
  }
  __syncwarp();
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int row = first + (i * 32 + lane) / kChunks, chunk = lane % kChunks;
    bf16* out = to(row);
    if (out == nullptr) continue;
    *reinterpret_cast<uint4*>(out + chunk * 8) =
        *reinterpret_cast<const uint4*>(matrix + PanelOffset(GradShape<D>::kOwn, row, chunk));
  }
}

__device__ __forceinline__ char* Align(char* shared) {
  return shared + (1024 - SharedAddress(shared) % 1024) % 1024;
}

}  // namespace orrery::kernels::cuda::grad_warpgroups

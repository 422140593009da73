// A warpgroup's outputs on their way to memory. A product leaves them with features down and rows
// of X across; memory wants a row's features side by side. They are turned round in shared memory,
// a few rows at a time, and each thread gets eight neighbouring outputs of one row: stores of whole
// cache lines.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels::cuda {

// Four 8x8 matrices of 16-bit values; lane 8 i + r says where row r of matrix i goes, 16 bytes.
__device__ __forceinline__ void StoreMatrix4(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
// The same, each transposed.
__device__ __forceinline__ void StoreMatrix4Transposed(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   SharedAddress(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// kFeatures: of the warpgroup, 64 or 128.
template <int kFeatures>
struct TurnedOutputs {
  static constexpr int kChunks = kFeatures / 8;      // 16 bytes each, of a row
  static constexpr int kRows = 128 / kChunks;        // at a time: one chunk a thread
  static constexpr int kPitch = 2 * kFeatures + 16;  // eight rows meet every bank once
  static constexpr int kBytes = 2 * kRows * kPitch;  // two buffers, by turns
  static_assert(kFeatures == 64 || kFeatures == 128);

  char* buffers;
  int barrier;  // of this warpgroup alone
  int turn = 0;

  // What this thread gets: a row, and the first of eight features.
  static __device__ int row() { return static_cast<int>(threadIdx.x) % 128 / kChunks; }
  static __device__ int feature() { return static_cast<int>(threadIdx.x) % kChunks * 8; }

  // By the whole warpgroup. A fragment has 64 features of eight rows (lane 4 g + t of warp w:
  // features 16 w + g of rows 2 t and 2 t + 1, then features 8 further); a and b are those of all
  // features of eight rows, or of 64 features of sixteen.
  __device__ __forceinline__ uint4 Turn(const float4& a, const float4& b) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    char* buffer = buffers + turn * kRows * kPitch;
    turn ^= 1;
    const int fragment = lane / 16;
    const int to_row = lane % 8 + (kFeatures == 64 ? 8 * fragment : 0);
    const int to_feature = 16 * warp + lane / 8 % 2 * 8 + (kFeatures == 64 ? 0 : 64 * fragment);
    StoreMatrix4Transposed(
        buffer + to_row * kPitch + 2 * to_feature,
        {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w)});
    // The other buffer's readers have met here since it was last written.
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
    return *reinterpret_cast<const uint4*>(buffer + row() * kPitch + 2 * feature());
  }
};

// The same where the product's rows are the output's, of T: nothing is turned, but a warp's 16 rows
// go to memory a cache line each. By one warp, for itself; T: bfloat16 or float.
template <typename T>
struct LinedOutputs {
  static constexpr int kColumns = 128 / sizeof(T);                     // at a time
  static constexpr int kValues = kColumns / 8 * 4;                     // of a lane
  static constexpr int kLoads = 4;                                     // 16 bytes each, a lane
  static constexpr int kPitch = sizeof(T) == 2 ? 128 + 16 : 128 + 32;  // every bank once
  static constexpr int kBytes = 16 * kPitch;

  char* buffer;

  // What this lane gets: the row of load i, and its first column.
  static __device__ int row(int i) { return 4 * i + static_cast<int>(threadIdx.x) % 32 / 8; }
  static __device__ int column() {
    return static_cast<int>(threadIdx.x) % 8 * (16 / static_cast<int>(sizeof(T)));
  }

  // Fragments of eight columns (lane 4 g + t: columns 2 t and 2 t + 1 of row g, then of row g + 8).
  __device__ __forceinline__ void Put(const float* v) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();  // what was here has been taken
    if constexpr (sizeof(T) == 2) {
      char* to = buffer + (lane % 8 + lane / 8 % 2 * 8) * kPitch + lane / 16 * 16;
#pragma unroll
      for (int i = 0; i < kValues; i += 8) {
        StoreMatrix4(to + 4 * i, {PackBf16(v[i], v[i + 1]), PackBf16(v[i + 2], v[i + 3]),
                                  PackBf16(v[i + 4], v[i + 5]), PackBf16(v[i + 6], v[i + 7])});
      }
    } else {
      char* to = buffer + lane / 4 * kPitch + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        *reinterpret_cast<float2*>(to + 8 * i) = make_float2(v[i], v[i + 1]);
        *reinterpret_cast<float2*>(to + 8 * i + 8 * kPitch) = make_float2(v[i + 2], v[i + 3]);
      }
    }
    __syncwarp();
  }
  template <typename Vector>
  __device__ __forceinline__ Vector Get(int i) const {
    return *reinterpret_cast<const Vector*>(buffer + row(i) * kPitch + 16 * (threadIdx.x % 8));
  }
};

}  // namespace orrery::kernels::cuda

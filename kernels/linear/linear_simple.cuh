// One tile of a product by plain float32 arithmetic: every output is one chain of fused
// multiply-adds over ascending k, whatever tile it falls in. Shared by the dense and the experts'
// products.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/swiglu/gated_product.cuh"

namespace orrery::kernels::cuda {

constexpr int kSimpleRows = 32, kSimpleFeatures = 64, kSimpleDepth = 16, kSimpleThreads = 256;
// Thread (ty, tx) of 16 x 16 owns rows ty + 16 i and features tx + 16 j of the tile.
constexpr int kOwnRows = kSimpleRows / 16, kOwnFeatures = kSimpleFeatures / 16;

// kParts products at once: 1, or gate and up, whose weight rows lie `part_rows` apart.
template <typename T, int kParts>
struct SimpleTile {
  Matrix<const T> w;         // from the tile's first feature on
  int64_t part_rows = 0;     // rows of w between parts
  int64_t num_features = 0;  // valid ones, of every part
  int64_t depth = 0;         // K

  // input(r): row r of the tile, null beyond the last one.
  template <typename Input>
  __device__ __forceinline__ void Compute(const Input& input,
                                          float (&sums)[kParts][kOwnRows][kOwnFeatures]) const {
    __shared__ float xs[kSimpleRows][kSimpleDepth + 1];
    __shared__ float ws[kParts][kSimpleFeatures][kSimpleDepth + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int64_t k0 = 0; k0 < depth; k0 += kSimpleDepth) {
      const bool inside = k0 + tx < depth;
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const T* row = input(ty + 16 * i);
        xs[ty + 16 * i][tx] = inside && row != nullptr ? ToFloat(row[k0 + tx]) : 0;
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < kOwnFeatures; ++j) {
          const int n = ty + 16 * j;
          const T* row = w.Row(part * part_rows + n);
          ws[part][n][tx] = inside && n < num_features ? ToFloat(row[k0 + tx]) : 0;
        }
      }
      __syncthreads();
      Accumulate(xs, ws, min(depth - k0, int64_t{kSimpleDepth}), sums);
      __syncthreads();
    }
  }

 private:
  __device__ __forceinline__ static void Accumulate(
      const float (&xs)[kSimpleRows][kSimpleDepth + 1],
      const float (&ws)[kParts][kSimpleFeatures][kSimpleDepth + 1], int64_t steps,
      float (&sums)[kParts][kOwnRows][kOwnFeatures]) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int c = 0; c < steps; ++c) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
          for (int j = 0; j < kOwnFeatures; ++j) {
            sums[part][i][j] = fmaf(xs[ty + 16 * i][c], ws[part][tx + 16 * j][c], sums[part][i][j]);
          }
        }
      }
    }
  }
};

// store(row, feature, sums of the parts) for every output of the tile that this thread owns.
template <int kParts, typename Store>
__device__ __forceinline__ void ForOwnOutputs(const float (&sums)[kParts][kOwnRows][kOwnFeatures],
                                              int64_t num_rows, int64_t num_features,
                                              const Store& store) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnFeatures; ++j) {
      if (ty + 16 * i >= num_rows || tx + 16 * j >= num_features) continue;
      float parts[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) parts[part] = sums[part][i][j];
      store(ty + 16 * i, tx + 16 * j, parts);
    }
  }
}

}  // namespace orrery::kernels::cuda

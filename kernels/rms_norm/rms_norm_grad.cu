// A thread block owns consecutive rows, a thread the same vectors of each: the gradient of the
// weight is added up in registers, row by row, and left as one row of partial sums a block.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/values.cuh"
#include "kernels/rms_norm/rms_norm_grad_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxBlocks = 528;

template <typename T>
struct NormGradParams {
  Matrix<const T> dy, x;
  const T* w = nullptr;
  float eps = 0;
  int64_t rows = 0, d = 0, rows_a_block = 0;
  bool aligned = false, accumulate = false;
  Matrix<T> dx;
  float* parts = nullptr;  // [blocks, d]
};

// Sums of two values over the block; every thread gets both.
__device__ __forceinline__ float2 BlockSums(float a, float b) {
  __shared__ float2 parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  a = WarpSum(a);
  b = WarpSum(b);
  __syncthreads();  // the last sums were read
  if (lane == 0) parts[warp] = {a, b};
  __syncthreads();
  const float2 mine = lane < blockDim.x / 32 ? parts[lane] : float2{0, 0};
  return {WarpSum(mine.x), WarpSum(mine.y)};
}

template <typename T, int kVectors>
__global__ void __launch_bounds__(kMaxThreads) RmsNormGradKernel(NormGradParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  const auto column = [](int v) { return (threadIdx.x + v * blockDim.x) * int64_t{kN}; };
  float w[kVectors][kN], dw[kVectors][kN] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    Unpack<T>(LoadUpTo(p.w + column(v), p.d - column(v), p.aligned), w[v]);
  }
  WaitForPredecessor();
  const int64_t first = blockIdx.x * p.rows_a_block;
  const int64_t end = min(first + p.rows_a_block, p.rows);
  for (int64_t t = first; t < end; ++t) {
    float x[kVectors][kN], dy[kVectors][kN], squares = 0, product = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = column(v);
      Unpack<T>(LoadUpTo(p.x.Row(t) + i, p.d - i, p.aligned), x[v]);
      Unpack<T>(LoadUpTo(p.dy.Row(t) + i, p.d - i, p.aligned), dy[v]);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        squares = fmaf(x[v][e], x[v][e], squares);
        product = fmaf(w[v][e] * dy[v][e], x[v][e], product);
      }
    }
    const float2 sums = BlockSums(squares, product);
    const float r = rsqrtf(sums.x / static_cast<float>(p.d) + p.eps);
    const float c = r * r * r / static_cast<float>(p.d) * sums.y;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = column(v);
      float dx[kN] = {};
      if (p.accumulate) Unpack<T>(LoadUpTo(p.dx.Row(t) + i, p.d - i, p.aligned), dx);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        dx[e] += r * w[v][e] * dy[v][e] - x[v][e] * c;
        dw[v][e] = fmaf(dy[v][e], x[v][e] * r, dw[v][e]);
      }
      StoreUpTo(Pack<T>(dx), p.dx.Row(t) + i, p.d - i, p.aligned);
    }
  }
  float* part = p.parts + blockIdx.x * p.d;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if (column(v) + e < p.d) part[column(v) + e] = dw[v][e];
    }
  }
}

int64_t RowsABlock(int64_t rows) { return std::max<int64_t>(1, DivideUp(rows, kMaxBlocks)); }

template <typename T>
void LaunchGrad(const NormGradParams<T>& p, int64_t blocks, cudaStream_t stream) {
  const int64_t vectors = DivideUp(p.d, kVectorSize<T>);
  const int64_t a_thread = vectors <= kMaxThreads       ? 1
                           : vectors <= 2 * kMaxThreads ? 2
                           : vectors <= 4 * kMaxThreads ? 4
                                                        : 8;
  const unsigned threads = static_cast<unsigned>(DivideUp(DivideUp(vectors, a_thread), 32) * 32);
  auto* kernel = a_thread == 1   ? RmsNormGradKernel<T, 1>
                 : a_thread == 2 ? RmsNormGradKernel<T, 2>
                 : a_thread == 4 ? RmsNormGradKernel<T, 4>
                                 : RmsNormGradKernel<T, 8>;
  Launch(kernel, static_cast<unsigned>(blocks), threads, 0, stream, p);
}

}  // namespace

int64_t RmsNormGradWorkspaceBytes(int64_t rows, int64_t d) {
  return rows == 0 ? 0 : DivideUp(rows, RowsABlock(rows)) * d * 4;
}

void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, float eps,
                 bool accumulate, const TensorView& dx, float* dw, void* workspace,
                 cudaStream_t stream) {
  CHECK(dy.rows == x.rows && dx.rows == x.rows && dy.cols == x.cols && dx.cols == x.cols &&
        w.cols == x.cols);
  CHECK(dy.dtype == x.dtype && dx.dtype == x.dtype && w.dtype == x.dtype);
  if (x.num_elements() == 0) return;
  const int64_t rows_a_block = RowsABlock(x.rows), blocks = DivideUp(x.rows, rows_a_block);
  float* parts = static_cast<float*>(workspace);
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    CHECK_LE(x.cols, kMaxThreads * 8 * kVectorSize<T>);
    NormGradParams<T> p;
    p.dy = AsMatrix<const T>(dy);
    p.x = AsMatrix<const T>(x);
    p.w = static_cast<const T*>(w.data);
    p.eps = eps;
    p.rows = x.rows;
    p.d = x.cols;
    p.rows_a_block = rows_a_block;
    p.aligned = VectorAligned(dy) && VectorAligned(x) && VectorAligned(w) && VectorAligned(dx);
    p.accumulate = accumulate;
    p.dx = AsMatrix<T>(dx);
    p.parts = parts;
    LaunchGrad(p, blocks, stream);
  });
  AddPartialSums(parts, blocks, x.cols, x.cols, dw, stream);
}

}  // namespace orrery::kernels::cuda

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/experts/experts_grad_simple.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct LinearParams {
  Matrix<const T> a, w;
  int64_t slots_per_row = 1, depth = 0, n = 0, weight_rows = 0;
  bool transposed = false;
  const int32_t* experts = nullptr;
  SortedRows rows;  // or none: a row of the result a slot
  int num_experts = 0;
  Matrix<T> out;
};

// One chain of fused multiply-adds over ascending k, as the forward's.
template <typename T>
__global__ void __launch_bounds__(kThreads) LinearKernel(LinearParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = blockIdx.x, n = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const bool sorted = p.rows.slots != nullptr;
  if (n >= p.n || (sorted && row >= p.rows.first[p.num_experts])) return;
  const int64_t slot = sorted ? p.rows.slots[row] : row;
  const int64_t expert = slot < 0 ? -1 : p.experts[slot];
  if (expert < 0) return;
  const T* a = p.a.Row(row / p.slots_per_row);
  const T* w = p.w.Row(expert * p.weight_rows);
  const int64_t row_step = p.transposed ? 1 : p.w.stride, k_step = p.transposed ? p.w.stride : 1;
  float sum = 0;
  for (int64_t k = 0; k < p.depth; ++k) {
    sum = fmaf(ToFloat(a[k]), ToFloat(w[n * row_step + k * k_step]), sum);
  }
  p.out.Row(row)[n] = FromFloat<T>(sum);
}

template <typename T>
struct WeightParams {
  Matrix<const T> a, b;
  int64_t m = 0, n = 0;
  const int32_t* first = nullptr;
  Matrix<float> dw;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) WeightKernel(WeightParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t expert = blockIdx.x / p.m, m = blockIdx.x % p.m;
  const int64_t n = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t begin = p.first[expert], end = p.first[expert + 1];
  if (n >= p.n || begin == end) return;
  float sum = 0;
  for (int64_t r = begin; r < end; ++r) {
    sum = fmaf(ToFloat(p.a.Row(r)[m]), ToFloat(p.b.Row(r)[n]), sum);
  }
  p.dw.Row(blockIdx.x)[n] += sum;
}

dim3 Grid(const TensorView& out) {
  return dim3(static_cast<unsigned>(out.rows), static_cast<unsigned>(DivideUp(out.cols, kThreads)));
}

void RunLinear(const TensorView& a, int64_t slots_per_row, const TensorView& w, bool transposed,
               const Routing& routing, const SortedRows& rows, const ExpertsShape& shape,
               const TensorView& out, cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    LinearParams<T> p;
    p.a = AsMatrix<const T>(a);
    p.w = AsMatrix<const T>(w);
    p.slots_per_row = slots_per_row;
    p.depth = a.cols;
    p.n = out.cols;
    p.weight_rows = w.rows / shape.num_experts;
    p.transposed = transposed;
    p.experts = routing.experts;
    p.rows = rows;
    p.num_experts = static_cast<int>(shape.num_experts);
    p.out = AsMatrix<T>(out);
    Launch(LinearKernel<T>, Grid(out), kThreads, 0, stream, p);
  });
}

}  // namespace

void ExpertsForwardSimple(const TensorView& a, int64_t slots_per_row, const TensorView& w,
                          const Routing& routing, const ExpertsShape& shape, const TensorView& out,
                          cudaStream_t stream) {
  RunLinear(a, slots_per_row, w, /*transposed=*/false, routing, {}, shape, out, stream);
}

void ExpertsInputSimple(const TensorView& a, const TensorView& w, const Routing& routing,
                        const SortedRows& rows, const ExpertsShape& shape, const TensorView& out,
                        cudaStream_t stream) {
  RunLinear(a, 1, w, /*transposed=*/true, routing, rows, shape, out, stream);
}

void ExpertsWeightSimple(const TensorView& a, const TensorView& b, const SortedRows& rows,
                         const ExpertsShape& shape, const TensorView& dw, cudaStream_t stream) {
  ForDType(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    WeightParams<T> p;
    p.a = AsMatrix<const T>(a);
    p.b = AsMatrix<const T>(b);
    p.m = dw.rows / shape.num_experts;
    p.n = dw.cols;
    p.first = rows.first;
    p.dw = AsMatrix<float>(dw);
    Launch(WeightKernel<T>, Grid(dw), kThreads, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda

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
  Matrix<T> out;
};

// One chain of fused multiply-adds over ascending k, as the forward's.
template <typename T>
__global__ void __launch_bounds__(kThreads) LinearKernel(LinearParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t slot = blockIdx.x, n = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t expert = p.experts[slot];
  if (expert < 0 || n >= p.n) return;
  const T* a = p.a.Row(slot / p.slots_per_row);
  const T* w = p.w.Row(expert * p.weight_rows);
  const int64_t row_step = p.transposed ? 1 : p.w.stride, k_step = p.transposed ? p.w.stride : 1;
  float sum = 0;
  for (int64_t k = 0; k < p.depth; ++k) {
    sum = fmaf(ToFloat(a[k]), ToFloat(w[n * row_step + k * k_step]), sum);
  }
  p.out.Row(slot)[n] = FromFloat<T>(sum);
}

template <typename T>
struct WeightParams {
  Matrix<const T> a, b;
  int64_t a_slots_per_row = 1, b_slots_per_row = 1, m = 0, n = 0;
  const int32_t* counts = nullptr;
  const int32_t* slots = nullptr;
  int64_t capacity = 0;
  Matrix<float> dw;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) WeightKernel(WeightParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t expert = blockIdx.x / p.m, m = blockIdx.x % p.m;
  const int64_t n = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t count = min(int64_t{p.counts[expert]}, p.capacity);
  if (n >= p.n || count == 0) return;
  const int32_t* slots = p.slots + expert * p.capacity;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T* a = p.a.Row(slots[i] / p.a_slots_per_row);
    sum = fmaf(ToFloat(a[m]), ToFloat(p.b.Row(slots[i] / p.b_slots_per_row)[n]), sum);
  }
  p.dw.Row(blockIdx.x)[n] += sum;
}

dim3 Grid(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(DivideUp(cols, kThreads)));
}

}  // namespace

void ExpertsLinearSimple(const SlotMatrix& a, const TensorView& w, bool transposed,
                         const Routing& routing, const ExpertsShape& shape, const TensorView& out,
                         cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    LinearParams<T> p;
    p.a = AsMatrix<const T>(a.rows);
    p.w = AsMatrix<const T>(w);
    p.slots_per_row = a.slots_per_row;
    p.depth = a.rows.cols;
    p.n = out.cols;
    p.weight_rows = w.rows / shape.num_experts;
    p.transposed = transposed;
    p.experts = routing.experts;
    p.out = AsMatrix<T>(out);
    Launch(LinearKernel<T>, Grid(out.rows, out.cols), kThreads, 0, stream, p);
  });
}

void ExpertsGradWeightSimple(const SlotMatrix& a, const SlotMatrix& b, const Routing& routing,
                             const ExpertsShape& shape, const TensorView& dw, cudaStream_t stream) {
  ForDType(a.rows.dtype, [&](auto tag) {
    using T = decltype(tag);
    WeightParams<T> p;
    p.a = AsMatrix<const T>(a.rows);
    p.b = AsMatrix<const T>(b.rows);
    p.a_slots_per_row = a.slots_per_row;
    p.b_slots_per_row = b.slots_per_row;
    p.m = dw.rows / shape.num_experts;
    p.n = dw.cols;
    p.counts = routing.counts;
    p.slots = routing.slots;
    p.capacity = routing.capacity;
    p.dw = AsMatrix<float>(dw);
    Launch(WeightKernel<T>, Grid(dw.rows, dw.cols), kThreads, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda

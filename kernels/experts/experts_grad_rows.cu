#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/experts/experts_grad_rows.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = kSortedRowStep;

// A block an expert. Which rows are its own follows from the counts of those before it.
__global__ void __launch_bounds__(kThreads)
    SortRowsKernel(Routing routing, SortedRows rows, int num_experts) {
  __shared__ int sums[kThreads / 32];
  LetSuccessorStart();
  WaitForPredecessor();
  const int expert = blockIdx.x, thread = threadIdx.x;
  const auto padded = [&](int e) {
    return (min(routing.counts[e], static_cast<int>(routing.capacity)) + kStep - 1) / kStep * kStep;
  };
  int before = 0;
  for (int e = thread; e < expert; e += kThreads) before += padded(e);
  before = __reduce_add_sync(~0u, before);
  if (thread % 32 == 0) sums[thread / 32] = before;
  __syncthreads();
  int first = 0;
  for (int w = 0; w < kThreads / 32; ++w) first += sums[w];
  const int count = min(routing.counts[expert], static_cast<int>(routing.capacity));
  const int end = padded(expert);
  if (thread == 0) {
    rows.first[expert] = first;
    if (expert == num_experts - 1) rows.first[num_experts] = first + end;
  }
  const int32_t* list = routing.slots + expert * routing.capacity;
  for (int i = thread; i < end; i += kThreads) {
    const int slot = i < count ? list[i] : -1;
    rows.slots[first + i] = slot;
    if (slot >= 0) rows.places[slot] = first + i;
  }
}

template <typename T>
struct RowsParams {
  Matrix<const T> x;
  Matrix<T> out;
  SortedRows rows;
  const int32_t* experts = nullptr;
  int num_experts = 0, top_k = 0;
  int64_t cols = 0;
  bool aligned = false;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) GatherKernel(RowsParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= p.cols || row >= p.rows.first[p.num_experts]) return;
  const int slot = p.rows.slots[row];
  const uint4 x =
      slot < 0 ? uint4{0, 0, 0, 0} : LoadUpTo(p.x.Row(slot / p.top_k) + i, p.cols - i, p.aligned);
  StoreUpTo(x, p.out.Row(row) + i, p.cols - i, p.aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SumKernel(RowsParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= p.cols) return;
  float sum[kN] = {};
#pragma unroll 4
  for (int k = 0; k < p.top_k; ++k) {
    const int64_t slot = t * p.top_k + k;
    if (p.experts[slot] < 0) continue;
    float x[kN];
    Unpack<T>(LoadUpTo(p.x.Row(p.rows.places[slot]) + i, p.cols - i, p.aligned), x);
#pragma unroll
    for (int e = 0; e < kN; ++e) sum[e] += x[e];
  }
  StoreUpTo(Pack<T>(sum), p.out.Row(t) + i, p.cols - i, p.aligned);
}

template <typename T>
RowsParams<T> MakeParams(const TensorView& x, const SortedRows& rows, const ExpertsShape& shape,
                         const TensorView& out) {
  RowsParams<T> p;
  p.x = AsMatrix<const T>(x);
  p.out = AsMatrix<T>(out);
  p.rows = rows;
  p.num_experts = static_cast<int>(shape.num_experts);
  p.top_k = static_cast<int>(shape.top_k);
  p.cols = out.cols;
  p.aligned = VectorAligned(x) && VectorAligned(out);
  return p;
}

template <typename T>
dim3 Grid(const TensorView& out) {
  return dim3(static_cast<unsigned>(out.rows),
              static_cast<unsigned>(DivideUp(out.cols, kThreads * kVectorSize<T>)));
}

}  // namespace

void SortRows(const Routing& routing, const ExpertsShape& shape, const SortedRows& rows,
              cudaStream_t stream) {
  Launch(SortRowsKernel, static_cast<unsigned>(shape.num_experts), kThreads, 0, stream, routing,
         rows, static_cast<int>(shape.num_experts));
}

void GatherSortedRows(const TensorView& x, const SortedRows& rows, const ExpertsShape& shape,
                      const TensorView& out, cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(GatherKernel<T>, Grid<T>(out), kThreads, 0, stream, MakeParams<T>(x, rows, shape, out));
  });
}

void SumSortedRows(const TensorView& x, const SortedRows& rows, const Routing& routing,
                   const ExpertsShape& shape, const TensorView& out, cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    RowsParams<T> p = MakeParams<T>(x, rows, shape, out);
    p.experts = routing.experts;
    Launch(SumKernel<T>, Grid<T>(out), kThreads, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda

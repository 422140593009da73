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
  int top_k = 0;
  int64_t cols = 0;
  bool aligned = false;
};

// A block a row of x, which is read once and written to all its places; after those, a block an
// expert, for its rows of zeros.
template <typename T>
__global__ void __launch_bounds__(kThreads) SpreadKernel(RowsParams<T> p, int64_t num_tokens) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t block = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= p.cols) return;
  const auto store = [&](const uint4& x, int64_t row) {
    StoreUpTo(x, p.out.Row(row) + i, p.cols - i, p.aligned);
  };
  if (block < num_tokens) {
    const uint4 x = LoadUpTo(p.x.Row(block) + i, p.cols - i, p.aligned);
    for (int64_t slot = block * p.top_k; slot < (block + 1) * p.top_k; ++slot) {
      if (p.experts[slot] >= 0) store(x, p.rows.places[slot]);
    }
    return;
  }
  const int64_t expert = block - num_tokens, end = p.rows.first[expert + 1];
  for (int64_t r = end - 1; r >= p.rows.first[expert] && p.rows.slots[r] < 0; --r) {
    store(uint4{0, 0, 0, 0}, r);
  }
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
  p.top_k = static_cast<int>(shape.top_k);
  p.cols = out.cols;
  p.aligned = VectorAligned(x) && VectorAligned(out);
  return p;
}

template <typename T>
dim3 Grid(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>(DivideUp(cols, kThreads * kVectorSize<T>)));
}

}  // namespace

void SortRows(const Routing& routing, const ExpertsShape& shape, const SortedRows& rows,
              cudaStream_t stream) {
  Launch(SortRowsKernel, static_cast<unsigned>(shape.num_experts), kThreads, 0, stream, routing,
         rows, static_cast<int>(shape.num_experts));
}

void SpreadRows(const TensorView& x, const SortedRows& rows, const Routing& routing,
                const ExpertsShape& shape, const TensorView& out, cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    RowsParams<T> p = MakeParams<T>(x, rows, shape, out);
    p.experts = routing.experts;
    Launch(SpreadKernel<T>, Grid<T>(x.rows + shape.num_experts, out.cols), kThreads, 0, stream, p,
           x.rows);
  });
}

void SumSortedRows(const TensorView& x, const SortedRows& rows, const Routing& routing,
                   const ExpertsShape& shape, const TensorView& out, cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    RowsParams<T> p = MakeParams<T>(x, rows, shape, out);
    p.experts = routing.experts;
    Launch(SumKernel<T>, Grid<T>(out.rows, out.cols), kThreads, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda

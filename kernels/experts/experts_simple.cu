// Blocks cover (features, rows of an expert, experts); those past an expert's last row have nothing
// to do.
#include "kernels/experts/experts_simple.h"
#include "kernels/linear/linear_simple.cuh"

namespace orrery::kernels::cuda {
namespace {

template <typename T>
struct ExpertsParams {
  Matrix<const T> x;
  int64_t slots_per_row = 1;  // of x: top_k, or 1 where x has a row a slot
  int64_t depth = 0;
  Matrix<const T> w;
  int64_t num_features = 0;
  const int32_t* counts = nullptr;
  const int32_t* slots = nullptr;
  int64_t capacity = 0;
  Matrix<T> out;
};

template <typename T, int kParts>
__global__ void __launch_bounds__(kSimpleThreads) ExpertsKernel(ExpertsParams<T> p) {
  WaitForPredecessor();
  LetSuccessorStart();  // not before: down, if it is the tensor cores', reads the routing at once
  const int64_t e = blockIdx.z, first = int64_t{blockIdx.y} * kSimpleRows;
  const int64_t num_rows = min(int64_t{p.counts[e]}, p.capacity) - first;
  if (num_rows <= 0) return;
  const int32_t* slots = p.slots + e * p.capacity + first;
  const int64_t n = int64_t{blockIdx.x} * kSimpleFeatures, valid = p.num_features - n;
  const SimpleTile<T, kParts> tile = {
      {p.w.Row(e * kParts * p.num_features + n), p.w.stride}, p.num_features, valid, p.depth};
  float sums[kParts][kOwnRows][kOwnFeatures] = {};
  const auto input = [&](int64_t r) {
    return r < num_rows ? p.x.Row(slots[r] / p.slots_per_row) : nullptr;
  };
  tile.Compute(input, sums);
  ForOwnOutputs(sums, num_rows, valid, [&](int r, int c, const float(&sum)[kParts]) {
    T* to = p.out.Row(slots[r]) + n + c;
    if constexpr (kParts == 2) {
      *to = SwiGlu<T>(sum[0], sum[1]);
    } else {
      *to = FromFloat<T>(sum[0]);
    }
  });
}

template <int kParts>
void LaunchExperts(const TensorView& x, int64_t slots_per_row, const TensorView& w,
                   const ExpertsShape& shape, const Routing& routing, const TensorView& out,
                   cudaStream_t stream) {
  CHECK(x.cols == w.cols && w.rows == shape.num_experts * kParts * out.cols);
  CHECK(x.dtype == w.dtype && x.dtype == out.dtype);
  const int64_t rows = out.rows / shape.top_k;  // no expert has more
  if (rows == 0 || out.cols == 0) return;
  const dim3 grid(static_cast<unsigned>(DivideUp(out.cols, kSimpleFeatures)),
                  static_cast<unsigned>(DivideUp(std::min(rows, routing.capacity), kSimpleRows)),
                  static_cast<unsigned>(shape.num_experts));
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const ExpertsParams<T> p = {AsMatrix<const T>(x), slots_per_row,    x.cols,
                                AsMatrix<const T>(w), out.cols,         routing.counts,
                                routing.slots,        routing.capacity, AsMatrix<T>(out)};
    Launch(ExpertsKernel<T, kParts>, grid, kSimpleThreads, 0, stream, p);
  });
}

}  // namespace

void ExpertsGateUpSimple(const TensorView& x, const TensorView& w, const ExpertsShape& shape,
                         const Routing& routing, const TensorView& hidden, cudaStream_t stream) {
  CHECK_EQ(hidden.rows, x.rows * shape.top_k);
  LaunchExperts<2>(x, shape.top_k, w, shape, routing, hidden, stream);
}

void ExpertsDownSimple(const TensorView& hidden, const TensorView& w, const ExpertsShape& shape,
                       const Routing& routing, const TensorView& y, cudaStream_t stream) {
  CHECK_EQ(hidden.rows, y.rows);
  LaunchExperts<1>(hidden, 1, w, shape, routing, y, stream);
}

}  // namespace orrery::kernels::cuda

#include "kernels/linear/linear_simple.cuh"
#include "kernels/linear/linear_simple.h"

namespace orrery::kernels::cuda {
namespace {

// The rows of x from the tile's first row on.
template <typename T>
struct DenseInput {
  Matrix<const T> x;
  int64_t num_rows;
  __device__ __forceinline__ const T* operator()(int64_t r) const {
    return r < num_rows ? x.Row(r) : nullptr;
  }
};

template <typename T, typename Out>
__global__ void __launch_bounds__(kSimpleThreads)
    LinearKernel(Matrix<const T> x, int64_t num_rows, int64_t depth, Matrix<const T> w,
                 int64_t num_features, const T* bias, Matrix<Out> out) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = int64_t{blockIdx.y} * kSimpleRows, n = int64_t{blockIdx.x} * kSimpleFeatures;
  const SimpleTile<T, 1> tile = {{w.Row(n), w.stride}, 0, num_features - n, depth};
  float sums[1][kOwnRows][kOwnFeatures] = {};
  tile.Compute(DenseInput<T>{{x.Row(row), x.stride}, num_rows - row}, sums);
  ForOwnOutputs(sums, num_rows - row, num_features - n, [&](int r, int c, const float(&sum)[1]) {
    const float value = bias == nullptr ? sum[0] : __fadd_rn(sum[0], ToFloat(bias[n + c]));
    out.Row(row + r)[n + c] = FromFloat<Out>(value);
  });
}

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    LinearSwiGluKernel(Matrix<const T> x, int64_t num_rows, int64_t depth, Matrix<const T> w,
                       int64_t f, Matrix<T> out) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = int64_t{blockIdx.y} * kSimpleRows, n = int64_t{blockIdx.x} * kSimpleFeatures;
  const SimpleTile<T, 2> tile = {{w.Row(n), w.stride}, f, f - n, depth};
  float sums[2][kOwnRows][kOwnFeatures] = {};
  tile.Compute(DenseInput<T>{{x.Row(row), x.stride}, num_rows - row}, sums);
  ForOwnOutputs(sums, num_rows - row, f - n, [&](int r, int c, const float(&sum)[2]) {
    out.Row(row + r)[n + c] = SwiGlu<T>(sum[0], sum[1]);
  });
}

dim3 Grid(int64_t rows, int64_t features) {
  return {static_cast<unsigned>(DivideUp(features, kSimpleFeatures)),
          static_cast<unsigned>(DivideUp(rows, kSimpleRows))};
}

}  // namespace

void LinearSimple(const TensorView& x, const TensorView& w, const TensorView& bias,
                  const TensorView& out, cudaStream_t stream) {
  CHECK(x.cols == w.cols && out.rows == x.rows && out.cols == w.rows);
  CHECK(x.dtype == w.dtype && (bias.data == nullptr || bias.dtype == w.dtype));
  CHECK(out.dtype == x.dtype || out.dtype == DType::kFloat32);
  if (out.rows == 0 || out.cols == 0) return;
  ForDType(x.dtype, [&](auto in_tag) {
    ForDType(out.dtype, [&](auto out_tag) {
      using T = decltype(in_tag);
      using Out = decltype(out_tag);
      if constexpr (sizeof(Out) >= sizeof(T)) {
        Launch(LinearKernel<T, Out>, Grid(out.rows, out.cols), kSimpleThreads, 0, stream,
               AsMatrix<const T>(x), x.rows, x.cols, AsMatrix<const T>(w), w.rows,
               static_cast<const T*>(bias.data), AsMatrix<Out>(out));
      }
    });
  });
}

void LinearSwiGluSimple(const TensorView& x, const TensorView& w, const TensorView& out,
                        cudaStream_t stream) {
  CHECK(x.cols == w.cols && out.rows == x.rows && 2 * out.cols == w.rows);
  CHECK(x.dtype == w.dtype && x.dtype == out.dtype);
  if (out.rows == 0 || out.cols == 0) return;
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(LinearSwiGluKernel<T>, Grid(out.rows, out.cols), kSimpleThreads, 0, stream,
           AsMatrix<const T>(x), x.rows, x.cols, AsMatrix<const T>(w), out.cols, AsMatrix<T>(out));
  });
}

}  // namespace orrery::kernels::cuda

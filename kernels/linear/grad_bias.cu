// A thread block owns consecutive rows, a thread one column of each.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/values.cuh"
#include "kernels/linear/linear_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRowsABlock = 64;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GradBiasKernel(Matrix<const T> dy, int64_t rows, int64_t n, float* parts) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t first = blockIdx.x * kRowsABlock, end = min(first + kRowsABlock, rows);
  float sum = 0;
  for (int64_t t = first; t < end; ++t) sum += ToFloat(dy.Row(t)[i]);
  parts[blockIdx.x * n + i] = sum;
}

}  // namespace

int64_t GradBiasWorkspaceBytes(int64_t rows, int64_t n) {
  return DivideUp(rows, kRowsABlock) * n * 4;
}

void GradBias(const TensorView& dy, float* db, void* workspace, cudaStream_t stream) {
  if (dy.num_elements() == 0) return;
  const int64_t blocks = DivideUp(dy.rows, kRowsABlock);
  float* parts = static_cast<float*>(workspace);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(DivideUp(dy.cols, kThreads)));
  ForDType(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(GradBiasKernel<T>, grid, kThreads, 0, stream, AsMatrix<const T>(dy), dy.rows, dy.cols,
           parts);
  });
  AddPartialSums(parts, blocks, dy.cols, dy.cols, db, stream);
}

}  // namespace orrery::kernels::cuda

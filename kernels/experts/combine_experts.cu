// A thread owns a vector of 16 bytes of one row.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/experts/combine_experts_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CombineExpertsKernel(Matrix<const T> y, const float* weights, int64_t top_k, int64_t d,
                         Matrix<T> out, bool aligned) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= d) return;
  float total[kN] = {};
#pragma unroll 4
  for (int64_t k = 0; k < top_k; ++k) {
    const int64_t slot = t * top_k + k;
    float row[kN];
    Unpack<T>(LoadUpTo(y.Row(slot) + i, d - i, aligned), row);
    const float weight = weights[slot];
#pragma unroll
    for (int e = 0; e < kN; ++e) total[e] = __fadd_rn(total[e], __fmul_rn(weight, row[e]));
  }
  StoreUpTo(Pack<T>(total), out.Row(t) + i, d - i, aligned);
}

}  // namespace

void CombineExperts(const TensorView& y, const float* weights, int64_t top_k, const TensorView& out,
                    cudaStream_t stream) {
  CHECK(y.rows == out.rows * top_k && y.cols == out.cols && y.dtype == out.dtype);
  if (out.num_elements() == 0) return;
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const dim3 grid(static_cast<unsigned>(out.rows),
                    static_cast<unsigned>(DivideUp(out.cols, kThreads * kVectorSize<T>)));
    Launch(CombineExpertsKernel<T>, grid, kThreads, 0, stream, AsMatrix<const T>(y), weights, top_k,
           out.cols, AsMatrix<T>(out), VectorAligned(y) && VectorAligned(out));
  });
}

}  // namespace orrery::kernels::cuda

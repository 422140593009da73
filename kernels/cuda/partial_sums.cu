#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kColumns = 32, kLanes = 16;

// Lane l of a column adds parts l, l + 16, ...; the lanes are then added in order.
__global__ void __launch_bounds__(kColumns* kLanes)
    PartialSumsKernel(const float* parts, int64_t num_parts, int64_t stride, int64_t n, float* to) {
  __shared__ float sums[kLanes][kColumns];
  LetSuccessorStart();
  WaitForPredecessor();
  const int column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const int64_t i = int64_t{blockIdx.x} * kColumns + column;
  float sum = 0;
  if (i < n) {
    for (int64_t p = lane; p < num_parts; p += kLanes) sum += parts[p * stride + i];
  }
  sums[lane][column] = sum;
  __syncthreads();
  if (lane != 0 || i >= n) return;
  float total = 0;
#pragma unroll
  for (int l = 0; l < kLanes; ++l) total += sums[l][column];
  to[i] += total;
}

}  // namespace

void AddPartialSums(const float* parts, int64_t num_parts, int64_t stride, int64_t n, float* to,
                    cudaStream_t stream) {
  if (n == 0 || num_parts == 0) return;
  Launch(PartialSumsKernel, static_cast<unsigned>(DivideUp(n, kColumns)), kColumns * kLanes, 0,
         stream, parts, num_parts, stride, n, to);
}

}  // namespace orrery::kernels::cuda

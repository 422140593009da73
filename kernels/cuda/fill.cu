#include "kernels/cuda/fill.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels::cuda {
namespace {

// The finaliser of splitmix64.
__device__ uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

__global__ void Fill(void* data, DType dtype, int64_t n, float low, float high, uint64_t seed) {
  WaitForPredecessor();
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const float u = static_cast<float>(Mix(seed ^ Mix(i)) >> 40) * 0x1p-24f;
    const float value = low + u * (high - low);
    if (dtype == DType::kFloat32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
    }
  }
}

}  // namespace

void FillUniform(void* data, DType dtype, int64_t n, float low, float high, uint64_t seed,
                 cudaStream_t stream) {
  if (n == 0) return;
  Launch(Fill, dim3(2048), dim3(256), 0, stream, data, dtype, n, low, high, seed);
}

}  // namespace orrery::kernels::cuda

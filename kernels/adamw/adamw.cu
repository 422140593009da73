// One thread block a piece; a thread takes four elements at a time.
#include <cmath>

#include "kernels/adamw/adamw_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 512;

// Sum over the block in one fixed order; thread 0 has it.
__device__ __forceinline__ double BlockSum(double x) {
  __shared__ double parts[kThreads / 32];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (const double part : parts) total += part;
  }
  return total;
}

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const float* grads, const AdamWPiece* pieces, double* sums) {
  LetSuccessorStart();
  WaitForPredecessor();
  const AdamWPiece piece = pieces[blockIdx.x];
  double sum = 0;
  for (int32_t i = threadIdx.x; i < piece.count; i += kThreads) {
    const double g = grads[piece.first + i];
    sum += g * g;
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    NormKernel(const double* sums, int64_t num_pieces, double* norm) {
  LetSuccessorStart();
  WaitForPredecessor();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num_pieces; i += kThreads) sum += sums[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *norm = sqrt(sum);
}

struct StepParams {
  AdamWHyperparameters h;
  float step_size = 0;          // learning rate / (1 - beta1^step)
  float second_correction = 1;  // 1 / sqrt(1 - beta2^step)
  const AdamWPiece* pieces = nullptr;
  const float* grads = nullptr;
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
};

__device__ __forceinline__ float StepOne(const StepParams& p, float decay, float g, float w,
                                         float* m, float* v) {
  g *= p.h.gradient_scale;
  *m = p.h.beta1 * *m + (1 - p.h.beta1) * g;
  *v = p.h.beta2 * *v + (1 - p.h.beta2) * g * g;
  const float denominator = sqrtf(*v) * p.second_correction + p.h.epsilon;
  return w * decay - p.step_size * *m / denominator;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AdamWKernel(StepParams p, T* weights) {
  LetSuccessorStart();
  WaitForPredecessor();
  const AdamWPiece piece = p.pieces[blockIdx.x];
  const float decay = piece.decay ? 1 - p.h.learning_rate * p.h.weight_decay : 1;
  for (int32_t i = 4 * threadIdx.x; i < piece.count; i += 4 * kThreads) {
    const int64_t at = piece.first + i;
    if (i + 4 <= piece.count) {
      const float4 g = *reinterpret_cast<const float4*>(p.grads + at);
      float4 w = *reinterpret_cast<float4*>(p.master + at);
      float4 m = *reinterpret_cast<float4*>(p.moment1 + at);
      float4 v = *reinterpret_cast<float4*>(p.moment2 + at);
      w.x = StepOne(p, decay, g.x, w.x, &m.x, &v.x);
      w.y = StepOne(p, decay, g.y, w.y, &m.y, &v.y);
      w.z = StepOne(p, decay, g.z, w.z, &m.z, &v.z);
      w.w = StepOne(p, decay, g.w, w.w, &m.w, &v.w);
      *reinterpret_cast<float4*>(p.master + at) = w;
      *reinterpret_cast<float4*>(p.moment1 + at) = m;
      *reinterpret_cast<float4*>(p.moment2 + at) = v;
      if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4*>(weights + at) = w;
      } else {
        *reinterpret_cast<uint2*>(weights + at) = {PackBf16(w.x, w.y), PackBf16(w.z, w.w)};
      }
      continue;
    }
    for (int64_t j = at; j < piece.first + piece.count; ++j) {
      p.master[j] = StepOne(p, decay, p.grads[j], p.master[j], &p.moment1[j], &p.moment2[j]);
      weights[j] = FromFloat<T>(p.master[j]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) RoundKernel(const float* master, int64_t n, T* to) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    to[i] = FromFloat<T>(master[i]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) WidenKernel(const T* weights, int64_t n, float* to) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    to[i] = ToFloat(weights[i]);
  }
}

}  // namespace

void GradNorm(const float* grads, const AdamWPiece* pieces, int64_t num_pieces, double* workspace,
              double* norm, cudaStream_t stream) {
  if (num_pieces > 0) {
    Launch(SquaresKernel, static_cast<unsigned>(num_pieces), kThreads, 0, stream, grads, pieces,
           workspace);
  }
  Launch(NormKernel, 1, kThreads, 0, stream, static_cast<const double*>(workspace), num_pieces,
         norm);
}

void AdamWStep(const AdamWHyperparameters& h, const AdamWPiece* pieces, int64_t num_pieces,
               const float* grads, float* master, float* moment1, float* moment2, void* weights,
               DType dtype, cudaStream_t stream) {
  if (num_pieces == 0) return;
  StepParams p;
  p.h = h;
  const double step = static_cast<double>(h.step);
  p.step_size = static_cast<float>(h.learning_rate / (1 - std::pow(double{h.beta1}, step)));
  p.second_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(double{h.beta2}, step)));
  p.pieces = pieces;
  p.grads = grads;
  p.master = master;
  p.moment1 = moment1;
  p.moment2 = moment2;
  ForDType(dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(AdamWKernel<T>, static_cast<unsigned>(num_pieces), kThreads, 0, stream, p,
           static_cast<T*>(weights));
  });
}

void WidenWeights(const void* weights, int64_t n, DType dtype, float* master, cudaStream_t stream) {
  if (n == 0) return;
  ForDType(dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(WidenKernel<T>, 1024, kThreads, 0, stream, static_cast<const T*>(weights), n, master);
  });
}

void RoundWeights(const float* master, int64_t n, void* weights, DType dtype, cudaStream_t stream) {
  if (n == 0) return;
  ForDType(dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(RoundKernel<T>, 1024, kThreads, 0, stream, master, n, static_cast<T*>(weights));
  });
}

}  // namespace orrery::kernels::cuda

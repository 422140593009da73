// round(silu(round(gate)) * round(up)) of two sums, as every kernel that ends in it computes it:
// the products fused with it (linear, experts) and the trainer's own pass give equal bits.
#pragma once

#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

// Before the last rounding, in a bfloat16 model.
__device__ __forceinline__ float GatedProduct(float gate, float up) {
  const float g = RoundBf16(gate);
  return __fdividef(g, 1 + __expf(-g)) * RoundBf16(up);
}

template <typename T>
__device__ __forceinline__ T SwiGlu(float gate, float up) {
  if constexpr (sizeof(T) == 2) {
    return FromFloat<T>(GatedProduct(gate, up));
  } else {
    return __fmul_rn(__fdiv_rn(gate, 1.0f + expf(-gate)), up);
  }
}

}  // namespace orrery::kernels::cuda

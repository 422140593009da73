// Powers of two by the special function unit, which is how kernels take exponentials: exp(x) is
// Exp2(x kLog2E), the factor mostly being part of a scale that is there anyway.
#pragma once

namespace orrery::kernels {

inline constexpr float kLog2E = 1.4426950408889634f;

// 2^x to about 2 units in the last place; subnormal x and results are 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace orrery::kernels

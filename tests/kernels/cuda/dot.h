// A dot product in double, and how far a float32 sum of the same terms may be from it.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {

struct Dot {
  double value = 0, size = 0;  // the sum of the terms, and of their magnitudes
};

inline Dot DotOf(const float* a, const float* b, int64_t n) {
  Dot dot;
  for (int64_t i = 0; i < n; ++i) {
    const double term = static_cast<double>(a[i]) * b[i];
    dot.value += term;
    dot.size += std::abs(term);
  }
  return dot;
}

// Largest error of a float32 sum of k terms in whatever order; tensor cores cut off what sticks out
// below when they align terms, which is twice the error of rounding.
inline double SumError(const Dot& dot, int64_t k) {
  return 2 * static_cast<double>(k + 1) * kFloatEps * dot.size;
}

}  // namespace orrery::kernels::cuda

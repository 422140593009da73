#include <cmath>

#include "kernels/swiglu/swiglu.h"

namespace orrery::kernels {

void SwiGluReference(const float* gate, const float* up, int64_t f, double* out) {
  for (int64_t i = 0; i < f; ++i) {
    const double g = gate[i];
    out[i] = g / (1 + std::exp(-g)) * up[i];
  }
}

}  // namespace orrery::kernels

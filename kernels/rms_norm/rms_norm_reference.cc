#include <cmath>

#include "kernels/rms_norm/rms_norm.h"

namespace orrery::kernels {

void RmsNormReference(const float* x, int64_t d, const float* w, double eps, double* out) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double r = 1 / std::sqrt(sum / static_cast<double>(d) + eps);
  for (int64_t i = 0; i < d; ++i) out[i] = w[i] * (x[i] * r);
}

}  // namespace orrery::kernels

#include <cmath>

#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/qk_norm_rope.h"

namespace orrery::kernels {

void QkNormRopeReference(const float* head, int64_t d, const float* norm, double eps,
                         const float* inv_freq, int32_t position, double* out) {
  std::vector<double> u(head, head + d);
  if (norm != nullptr) RmsNormReference(head, d, norm, eps, u.data());
  for (int64_t j = 0; j < d / 2; ++j) {
    const double angle = static_cast<float>(position) * inv_freq[j];
    const double a = u[j], b = u[j + d / 2];
    out[j] = a * std::cos(angle) - b * std::sin(angle);
    out[j + d / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

}  // namespace orrery::kernels

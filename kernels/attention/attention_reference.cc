#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"

namespace orrery::kernels {

void AttentionReference(const float* q, const float* k, const float* v, int64_t n, int64_t d,
                        int64_t kv_stride, double scale, double* out) {
  std::vector<double> p(static_cast<size_t>(n));
  double max = -1e300, sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    double s = 0;
    for (int64_t i = 0; i < d; ++i) s += static_cast<double>(q[i]) * k[j * kv_stride + i];
    p[j] = s * scale;
    max = std::max(max, p[j]);
  }
  for (double& x : p) sum += x = std::exp(x - max);
  std::fill(out, out + d, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < d; ++i) out[i] += p[j] / sum * v[j * kv_stride + i];
  }
}

}  // namespace orrery::kernels

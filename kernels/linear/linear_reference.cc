#include "kernels/cpu/bfloat16.h"
#include "kernels/linear/linear.h"

namespace orrery::kernels {
namespace {

double At(const TensorView& w, int64_t row, int64_t col) {
  return w.dtype == DType::kFloat32 ? w.f32(row)[col] : FromBFloat16(w.bf16(row)[col]);
}

}  // namespace

void LinearReference(const TensorView& x, const TensorView& w, const float* bias, double* out) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = bias == nullptr ? 0 : bias[n];
      for (int64_t k = 0; k < w.cols; ++k) sum += At(x, t, k) * At(w, n, k);
      out[t * w.rows + n] = sum;
    }
  }
}

}  // namespace orrery::kernels

// RMSNorm as Qwen and Llama define it, over rows of d:
//
//   out = round(w * round(x * rsqrt(mean(x^2) + eps)))
//
// and the same after a residual addition: sum = round(x + delta), out = norm(sum). Statistics in
// float32. w: float32 [d]. x, delta, sum, out: [T, d]; sum may be x or delta, out must be neither.
// Gradient (x as in the forward, r = rsqrt(mean(x^2) + eps)):
//   dx (+)= r * (w dy) - x * r^3 / d * sum(w dy x),   dw += sum_t dy * x * r
// dw is added in row order.
#pragma once

#include "kernels/tensor_view.h"

namespace orrery::kernels {

void RmsNorm(const TensorView& x, const float* w, float eps, Rounding rounding,
             const TensorView& out);
void AddRmsNorm(const TensorView& x, const TensorView& delta, const float* w, float eps,
                Rounding rounding, const TensorView& sum, const TensorView& out);
// accumulate: add to dx, else overwrite.
void RmsNormGrad(const TensorView& dy, const TensorView& x, const float* w, float eps,
                 bool accumulate, const TensorView& dx, float* dw);

// One row, serially: used by kernels that normalise inside (qk-norm).
void RmsNormRow(const float* x, int64_t d, const float* w, float eps, Rounding rounding,
                float* out);
void RmsNormGradRow(const float* dy, const float* x, int64_t d, const float* w, float eps,
                    bool accumulate, float* dx, float* dw);

void RmsNormReference(const float* x, int64_t d, const float* w, double eps, double* out);

}  // namespace orrery::kernels

// Dense products on the CPU, one family for every caller, forward and backward.
//
//   Linear           out[t, n] = round(sum_k x[t, k] * w[n, k] + bias[n])     x @ w^T
//   LinearGradInput  dx[t, k] (+)= sum_n dy[t, n] * w[n, k]                   dy @ w
//   LinearGradWeight dw[n, k] += sum_t dy[t, n] * x[t, k]                     dy^T @ x
//
// Every output element is one chain of fused multiply-adds over the contracted index in ascending
// order, in float32, starting from zero; bias is added last. So an element depends on its own row
// and column alone: not on the number of rows, the tile it falls in, the thread, or the vector
// width (on processors with fused multiply-add). That is what makes rollout and trainer agree
// bitwise.
//
// Weights are bfloat16 or float32; x, out, dy, dx, dw are float32 in memory. Aliasing of an input
// and an output is an error. All sizes may be 0; nothing needs alignment.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace orrery::kernels {

// Columns of one panel of a packed weight.
inline constexpr int64_t kPanelColumns = 16;

// A weight [N, K] repacked for Linear: panels of 16 output features, each [K, 16], the last one
// padded with zeros. Same dtype as the weight.
struct PackedWeight {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  int64_t k = 0;

  static int64_t NumElements(int64_t n, int64_t k) {
    return (n + kPanelColumns - 1) / kPanelColumns * kPanelColumns * k;
  }
};

// packed has room for NumElements(w.rows, w.cols) elements of w.dtype.
PackedWeight PackWeight(const TensorView& w, void* packed);

// bias: N floats or null. Parallel over panels.
void Linear(const TensorView& x, const PackedWeight& w, const float* bias, Rounding rounding,
            const TensorView& out);

// w: [N, K] row-major, not packed. accumulate: add to dx, else overwrite.
void LinearGradInput(const TensorView& dy, const TensorView& w, bool accumulate,
                     const TensorView& dx);

// Adds to dw [N, K].
void LinearGradWeight(const TensorView& dy, const TensorView& x, const TensorView& dw);

// The same three in double, for tests. Weights of either dtype.
void LinearReference(const TensorView& x, const TensorView& w, const float* bias, double* out);

}  // namespace orrery::kernels

// The gated activation of Llama and Qwen MLPs: gate_up [T, 2f] holds gate in columns [0, f) and up
// in [f, 2f).
//
//   out[t, i] = round(silu(gate) * up),  silu(g) = g / (1 + exp(-g))
//
// Gradient: dgate = dy * up * s * (1 + g * (1 - s)), dup = dy * g * s, s = 1 / (1 + exp(-g)).
// All float32 in memory. dgate_up is overwritten.
#pragma once

#include "kernels/tensor_view.h"

namespace orrery::kernels {

void SwiGlu(const TensorView& gate_up, Rounding rounding, const TensorView& out);
void SwiGluGrad(const TensorView& dy, const TensorView& gate_up, const TensorView& dgate_up);

// One row in double, for tests.
void SwiGluReference(const float* gate, const float* up, int64_t f, double* out);

}  // namespace orrery::kernels

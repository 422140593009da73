// RMSNorm on a GPU (rms_norm.h has the formula), with the residual addition before it. One thread
// block a row; the sum of squares is reduced in one fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// What is added to the residual stream before the norm.
struct Delta {
  TensorView rows;  // [T, d]; data null: nothing
  // With experts: rows is [T top_k, d], and what is added is round(sum_k weights[t, k] * row),
  // slots in order. Slots with expert -1 (padding) may hold anything.
  const float* weights = nullptr;
  const int32_t* experts = nullptr;
  int64_t top_k = 0;
};

// sum = round(x + delta) (may be x; not written without a delta); out = norm(sum) * w. w: [1, d].
// All in x's dtype.
void AddRmsNorm(const TensorView& x, const Delta& delta, const TensorView& w, float eps,
                const TensorView& sum, const TensorView& out, cudaStream_t stream);

// out[i] = x[rows[i]] + delta of that row, normed: the hidden states that go to the head. rows:
// device [n]; a negative one gives an unspecified finite row.
void AddRmsNormGathered(const TensorView& x, const Delta& delta, const int32_t* rows,
                        const TensorView& w, float eps, const TensorView& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

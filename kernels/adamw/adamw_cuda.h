// One AdamW step over flat buffers on a GPU (trainer/optimizer.h has the formulas), with the
// gradient's norm before it. The flat buffer is cut into pieces of at most kAdamWPiece elements of
// one parameter each; the norm's sum runs over the pieces in order, in double: bitwise repeatable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

inline constexpr int64_t kAdamWPiece = 1 << 15;

// Consecutive elements of one parameter; first is a multiple of 4.
struct AdamWPiece {
  int64_t first = 0;
  int32_t count = 0;
  int32_t decay = 0;  // whether weight decay applies
};

struct AdamWHyperparameters {
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float weight_decay = 0, learning_rate = 0;
  float gradient_scale = 1;  // of clipping
  int64_t step = 1;          // from 1: for the bias corrections
};

// *norm (device) = sqrt of the sum of squares. workspace: num_pieces doubles on the device.
void GradNorm(const float* grads, const AdamWPiece* pieces, int64_t num_pieces, double* workspace,
              double* norm, cudaStream_t stream);

// Updates master weights and moments (float32), and writes the weights, rounded, where the model
// reads them (dtype, same flat order).
void AdamWStep(const AdamWHyperparameters& h, const AdamWPiece* pieces, int64_t num_pieces,
               const float* grads, float* master, float* moment1, float* moment2, void* weights,
               DType dtype, cudaStream_t stream);

// master = weights, exactly; n elements.
void WidenWeights(const void* weights, int64_t n, DType dtype, float* master, cudaStream_t stream);

// weights = master, rounded to the dtype; n elements.
void RoundWeights(const float* master, int64_t n, void* weights, DType dtype, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

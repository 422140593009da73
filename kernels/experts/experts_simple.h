// The experts' products on a GPU for float32 and for shapes that tensor cores do not take
// (routed_experts_cuda.h has the meaning). For parity, not for speed.
#pragma once

#include "kernels/experts/routed_experts_cuda.h"

namespace orrery::kernels::cuda {

void ExpertsGateUpSimple(const TensorView& x, const TensorView& w, const ExpertsShape& shape,
                         const Routing& routing, const TensorView& hidden, cudaStream_t stream);
void ExpertsDownSimple(const TensorView& hidden, const TensorView& w, const ExpertsShape& shape,
                       const Routing& routing, const TensorView& y, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

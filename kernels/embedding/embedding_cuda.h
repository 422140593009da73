// out[t] = table[token_ids[t]] on a GPU, one dtype. A negative id stands for a token that is known
// on the device alone: -1 - j is previous[j], what the step before drew. Ids outside the table give
// row 0 (padding).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// previous: may be null.
void Embedding(const TensorView& table, const int32_t* token_ids, const int32_t* previous,
               const TensorView& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

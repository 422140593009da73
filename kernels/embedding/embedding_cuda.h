// out[t] = table[token_ids[t]] on a GPU, one dtype. Ids outside the table give row 0 (padding).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

void Embedding(const TensorView& table, const int32_t* token_ids, const TensorView& out,
               cudaStream_t stream);

}  // namespace orrery::kernels::cuda

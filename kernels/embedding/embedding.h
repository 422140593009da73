// out[t] = table[token_ids[t]], float32 [T, d] from a float32 or bfloat16 table [V, d].
// The gradient adds dy[t] to dtable[token_ids[t]] in token order (no atomics: bitwise repeatable).
// REQUIRES: 0 <= token_ids[t] < V.
#pragma once

#include <span>

#include "kernels/tensor_view.h"

namespace orrery::kernels {

void Embedding(const TensorView& table, std::span<const int32_t> token_ids, const TensorView& out);
void EmbeddingGrad(const TensorView& dy, std::span<const int32_t> token_ids,
                   const TensorView& dtable);

}  // namespace orrery::kernels

// The sampler's passes over single rows: top-k, top-p and min-p, penalties, banned ids. Part of
// SampleTokens.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sampler/sampler_cuda.h"

namespace orrery::kernels::cuda {

struct RowStats;
struct PieceStats;

// Draws for the rows that need passes of their own; stats: of every row, by the draw before;
// pieces: of every row's pieces.
void SampleFilteredRows(const TensorView& logits, const SamplerRow* rows, const RowStats* stats,
                        const PieceStats* pieces, const SamplerOutput& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

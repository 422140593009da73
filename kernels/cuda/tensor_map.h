// Matrices as Hopper's copy engine sees them: one instruction brings a box of rows and columns to
// shared memory, laid out as warpgroup products read it (wgmma.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace orrery::kernels {

// Columns of a box: 128 bytes, chunks of 16 bytes swizzled by row % 8.
inline constexpr int64_t kBoxColumns = 64;

// A bfloat16 matrix in device memory in boxes of box_rows (at most 256) rows. What a box has beyond
// the matrix comes as zeros. REQUIRES: data and rows 16-byte aligned.
CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t cols, int64_t row_stride,
                          int64_t box_rows);

}  // namespace orrery::kernels

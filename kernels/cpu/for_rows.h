// body(row) for every row of a matrix, in parallel by runs of rows of a fixed length.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace orrery::kernels {

template <typename Body>
void ForRows(int64_t rows, int64_t rows_per_task, const Body& body) {
  ParallelFor((rows + rows_per_task - 1) / rows_per_task, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
  });
}

}  // namespace orrery::kernels

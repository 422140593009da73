// The order in which the experts' gradient holds rows: an expert's slots one after the other, as
// its list has them, then rows of zeros up to a multiple of 64. So operands of all products but the
// forward's are dense, and a sum over an expert's rows takes whole slabs.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

inline constexpr int64_t kSortedRowStep = 64;

struct SortedRows {
  int32_t* first = nullptr;   // [E + 1] first row of each expert
  int32_t* slots = nullptr;   // [max_rows]; negative: a row of zeros. Rows from first[E] on: unused
  int32_t* places = nullptr;  // [T top_k] row of each slot that has an expert
  int64_t max_rows = 0;
};

inline int64_t MaxSortedRows(const ExpertsShape& shape, int64_t num_slots) {
  const int64_t lists = std::min(shape.num_experts, num_slots);
  return (num_slots + lists * (kSortedRowStep - 1)) / kSortedRowStep * kSortedRowStep;
}

void SortRows(const Routing& routing, const ExpertsShape& shape, const SortedRows& rows,
              cudaStream_t stream);

// out[r] = x[slot / top_k], or zeros; the unused rows are left alone.
void SpreadRows(const TensorView& x, const SortedRows& rows, const Routing& routing,
                const ExpertsShape& shape, const TensorView& out, cudaStream_t stream);

// out[t] = round(sum over the slots of t, in order, of x[place]).
void SumSortedRows(const TensorView& x, const SortedRows& rows, const Routing& routing,
                   const ExpertsShape& shape, const TensorView& out, cudaStream_t stream);

}  // namespace orrery::kernels::cuda

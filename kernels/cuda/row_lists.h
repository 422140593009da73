// Rows taken by index, and the transpose of that: sums over lists of rows. Lists are made on the
// host, sorted, so a sum has one order. Serves the embedding's gradient (rows by token) and the
// head's (targets by the row that predicts them).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// For each distinct key, ascending: the indices that have it, ascending.
struct RowLists {
  std::vector<int32_t> keys;     // [m]
  std::vector<int32_t> first;    // [m + 1] into indices
  std::vector<int32_t> indices;  // [n]
};
RowLists ListByKey(std::span<const int32_t> keys);

// RowLists on the device.
struct DeviceRowLists {
  const int32_t* keys = nullptr;
  const int32_t* first = nullptr;
  const int32_t* indices = nullptr;
  int64_t num_lists = 0;
};

// out[i] = x[rows[i]], one dtype. rows: device [out.rows].
void GatherRows(const TensorView& x, const int32_t* rows, const TensorView& out,
                cudaStream_t stream);

// to[keys[l]] += sum over list l of x[index], in list order, in float32. to: x's dtype or float32.
void AddListedRows(const TensorView& x, const DeviceRowLists& lists, const TensorView& to,
                   cudaStream_t stream);

}  // namespace orrery::kernels::cuda

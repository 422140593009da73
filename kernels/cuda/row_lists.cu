#include <algorithm>
#include <numeric>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_lists.h"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(Matrix<const T> x, const int32_t* rows, Matrix<T> out, int64_t d,
                     bool aligned) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const T* from = x.Row(rows[blockIdx.x]);
  T* to = out.Row(blockIdx.x);
  for (int64_t i = int64_t{threadIdx.x} * kN; i < d; i += kThreads * kN) {
    StoreUpTo(LoadUpTo(from + i, d - i, aligned), to + i, d - i, aligned);
  }
}

// A thread owns a vector of columns of one list.
template <typename T, typename To>
__global__ void __launch_bounds__(kThreads)
    AddListedRowsKernel(Matrix<const T> x, DeviceRowLists lists, Matrix<To> to, int64_t d,
                        bool aligned) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= d) return;
  float sum[kN] = {};
  const int32_t end = lists.first[blockIdx.x + 1];
  for (int32_t l = lists.first[blockIdx.x]; l < end; ++l) {
    float row[kN];
    Unpack<T>(LoadUpTo(x.Row(lists.indices[l]) + i, d - i, aligned), row);
#pragma unroll
    for (int e = 0; e < kN; ++e) sum[e] += row[e];
  }
  To* out = to.Row(lists.keys[blockIdx.x]) + i;
#pragma unroll
  for (int e = 0; e < kN; ++e) {
    if (i + e < d) out[e] = FromFloat<To>(ToFloat(out[e]) + sum[e]);
  }
}

template <typename T, typename To>
void LaunchAdd(const TensorView& x, const DeviceRowLists& lists, const TensorView& to,
               cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(lists.num_lists),
                  static_cast<unsigned>(DivideUp(x.cols, kThreads * kVectorSize<T>)));
  Launch(AddListedRowsKernel<T, To>, grid, kThreads, 0, stream, AsMatrix<const T>(x), lists,
         AsMatrix<To>(to), x.cols, VectorAligned(x));
}

}  // namespace

RowLists ListByKey(std::span<const int32_t> keys) {
  RowLists lists;
  lists.indices.resize(keys.size());
  std::iota(lists.indices.begin(), lists.indices.end(), 0);
  std::stable_sort(lists.indices.begin(), lists.indices.end(),
                   [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
  for (size_t i = 0; i < lists.indices.size(); ++i) {
    const int32_t key = keys[lists.indices[i]];
    if (!lists.keys.empty() && lists.keys.back() == key) continue;
    lists.keys.push_back(key);
    lists.first.push_back(static_cast<int32_t>(i));
  }
  lists.first.push_back(static_cast<int32_t>(keys.size()));
  return lists;
}

void GatherRows(const TensorView& x, const int32_t* rows, const TensorView& out,
                cudaStream_t stream) {
  CHECK(x.cols == out.cols && x.dtype == out.dtype);
  if (out.num_elements() == 0) return;
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(GatherRowsKernel<T>, static_cast<unsigned>(out.rows), kThreads, 0, stream,
           AsMatrix<const T>(x), rows, AsMatrix<T>(out), x.cols,
           VectorAligned(x) && VectorAligned(out));
  });
}

void AddListedRows(const TensorView& x, const DeviceRowLists& lists, const TensorView& to,
                   cudaStream_t stream) {
  CHECK_EQ(x.cols, to.cols);
  CHECK(to.dtype == x.dtype || to.dtype == DType::kFloat32);
  if (lists.num_lists == 0 || x.cols == 0) return;
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (to.dtype == DType::kFloat32) {
      LaunchAdd<T, float>(x, lists, to, stream);
    } else {
      LaunchAdd<T, T>(x, lists, to, stream);
    }
  });
}

}  // namespace orrery::kernels::cuda

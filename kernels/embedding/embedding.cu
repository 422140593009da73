#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbeddingKernel(Matrix<const T> table, int64_t vocabulary, int64_t d, const int32_t* token_ids,
                    const int32_t* previous, bool aligned, Matrix<T> out) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x;
  int64_t token = token_ids[t];
  if (token < 0 && previous != nullptr) token = previous[-1 - token];
  const T* from = table.Row(token >= 0 && token < vocabulary ? token : 0);
  T* to = out.Row(t);
  for (int64_t i = threadIdx.x * kVectorSize<T>; i < d; i += kThreads * kVectorSize<T>) {
    StoreUpTo(LoadUpTo(from + i, d - i, aligned), to + i, d - i, aligned);
  }
}

}  // namespace

void Embedding(const TensorView& table, const int32_t* token_ids, const int32_t* previous,
               const TensorView& out, cudaStream_t stream) {
  CHECK_EQ(out.cols, table.cols);
  CHECK(table.dtype == out.dtype && table.rows > 0);
  if (out.rows == 0 || out.cols == 0) return;
  const bool aligned = VectorAligned(table) && VectorAligned(out);
  ForDType(table.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(EmbeddingKernel<T>, static_cast<unsigned>(out.rows), kThreads, 0, stream,
           AsMatrix<const T>(table), table.rows, table.cols, token_ids, previous, aligned,
           AsMatrix<T>(out));
  });
}

}  // namespace orrery::kernels::cuda

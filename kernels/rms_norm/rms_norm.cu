// A thread owns the vectors threadIdx.x, threadIdx.x + blockDim.x, ... of a row, whether or not
// they can be read 16 bytes at a time: the order of the sum is a function of d and dtype alone.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_rows.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxWidth = 16384;
template <typename T>
constexpr int kMaxVectors = kMaxWidth / kVectorSize<T> / kMaxThreads;  // a thread

template <typename T>
struct NormParams {
  Matrix<const T> x, delta;
  const float* weights = nullptr;  // of the slots; null: delta is one row a row
  const int32_t* experts = nullptr;
  int64_t top_k = 0;
  const int32_t* gather = nullptr;
  const T* w = nullptr;
  float eps = 0;
  int64_t d = 0;
  bool aligned = false;
  bool write_sum = false;
  Matrix<T> sum, out;
};

// round(sum_k weights[k] * row[k]) of one vector. Loads of kAhead slots are in flight at a time,
// also of what turns out to be padding's: its row exists, though nothing was written there.
template <typename T, int kAhead>
__device__ __forceinline__ void CombineSlots(const NormParams<T>& p, int64_t t, int64_t i,
                                             float (&out)[kVectorSize<T>]) {
  constexpr int kN = kVectorSize<T>;
  float total[kN] = {};
  for (int64_t first = 0; first < p.top_k; first += kAhead) {
    uint4 raw[kAhead];
    int32_t expert[kAhead];
    float weight[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const bool exists = first + s < p.top_k;
      const int64_t slot = exists ? t * p.top_k + first + s : 0;
      raw[s] = LoadUpTo(p.delta.Row(slot) + i, exists ? p.d - i : 0, p.aligned);
      expert[s] = exists ? p.experts[slot] : -1;
      weight[s] = exists ? p.weights[slot] : 0;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      float y[kN];
      Unpack<T>(expert[s] >= 0 ? raw[s] : uint4{}, y);
      if (expert[s] < 0) weight[s] = 0;
#pragma unroll
      for (int e = 0; e < kN; ++e) total[e] = __fadd_rn(total[e], __fmul_rn(weight[s], y[e]));
    }
  }
#pragma unroll
  for (int e = 0; e < kN; ++e) out[e] = RoundTo<T>(total[e]);
}

// x, or round(x + delta), of one vector.
template <typename T, int kAhead>
__device__ __forceinline__ void LoadSum(const NormParams<T>& p, int64_t t, int64_t i,
                                        float (&x)[kVectorSize<T>]) {
  constexpr int kN = kVectorSize<T>;
  Unpack<T>(LoadUpTo(p.x.Row(t) + i, p.d - i, p.aligned), x);
  if (p.delta.data == nullptr) return;
  float delta[kN];
  if (p.weights != nullptr) {
    CombineSlots<T, kAhead>(p, t, i, delta);
  } else {
    Unpack<T>(LoadUpTo(p.delta.Row(t) + i, p.d - i, p.aligned), delta);
  }
  AddDelta<T>(delta, x);
}

__device__ __forceinline__ float BlockSum(float x) {
  __shared__ float parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = WarpSum(x);
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return WarpSum(lane < blockDim.x / 32 ? parts[lane] : 0);
}

template <typename T, int kVectors>
__global__ void __launch_bounds__(kMaxThreads) AddRmsNormKernel(NormParams<T> p) {
  constexpr int kN = kVectorSize<T>, kAhead = kVectors > 1 ? 4 : 8;  // as registers allow
  LetSuccessorStart();
  uint4 w[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = (threadIdx.x + v * blockDim.x) * int64_t{kN};
    w[v] = LoadUpTo(p.w + i, p.d - i, p.aligned);
  }
  WaitForPredecessor();
  const int64_t t = p.gather == nullptr ? int64_t{blockIdx.x} : int64_t{p.gather[blockIdx.x]};
  float x[kVectors][kN] = {}, squares = 0;
  if (t >= 0) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = (threadIdx.x + v * blockDim.x) * int64_t{kN};
      if (i >= p.d) continue;
      LoadSum<T, kAhead>(p, t, i, x[v]);
      if (p.write_sum) StoreUpTo(Pack<T>(x[v]), p.sum.Row(t) + i, p.d - i, p.aligned);
      squares = AddSquares(x[v], squares);
    }
  }
  const float r = InverseRms(BlockSum(squares), static_cast<float>(p.d), p.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t i = (threadIdx.x + v * blockDim.x) * int64_t{kN};
    StoreUpTo(NormedVector<T>(x[v], r, w[v]), p.out.Row(blockIdx.x) + i, p.d - i, p.aligned);
  }
}

template <typename T>
void LaunchNorm(const NormParams<T>& p, int64_t rows, cudaStream_t stream) {
  const int64_t vectors = DivideUp(p.d, kVectorSize<T>);
  const int64_t a_thread = vectors <= kMaxThreads       ? 1
                           : vectors <= 2 * kMaxThreads ? 2
                           : vectors <= 4 * kMaxThreads ? 4
                                                        : kMaxVectors<T>;
  const unsigned threads = static_cast<unsigned>(DivideUp(DivideUp(vectors, a_thread), 32) * 32);
  auto* kernel = a_thread == 1   ? AddRmsNormKernel<T, 1>
                 : a_thread == 2 ? AddRmsNormKernel<T, 2>
                 : a_thread == 4 ? AddRmsNormKernel<T, 4>
                                 : AddRmsNormKernel<T, kMaxVectors<T>>;
  Launch(kernel, static_cast<unsigned>(rows), threads, 0, stream, p);
}

void Norm(const TensorView& x, const Delta& delta, const int32_t* gather, const TensorView& w,
          float eps, const TensorView* sum, const TensorView& out, cudaStream_t stream) {
  CHECK_EQ(x.cols, out.cols);
  CHECK_EQ(x.cols, w.cols);
  CHECK(x.dtype == w.dtype && x.dtype == out.dtype);
  if (out.rows == 0 || out.cols == 0) return;
  const bool adds = delta.rows.data != nullptr;
  CHECK(!adds || (delta.rows.cols == x.cols && delta.rows.dtype == x.dtype));
  CHECK(delta.weights == nullptr || (delta.experts != nullptr && delta.top_k > 0));
  ForDType(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    CHECK_LE(x.cols, kMaxWidth);
    NormParams<T> p;
    p.x = AsMatrix<const T>(x);
    if (adds) p.delta = AsMatrix<const T>(delta.rows);
    p.weights = delta.weights;
    p.experts = delta.experts;
    p.top_k = delta.top_k;
    p.gather = gather;
    p.w = static_cast<const T*>(w.data);
    p.eps = eps;
    p.d = x.cols;
    p.write_sum = adds && sum != nullptr;
    if (p.write_sum) p.sum = AsMatrix<T>(*sum);
    p.out = AsMatrix<T>(out);
    p.aligned = VectorAligned(x) && VectorAligned(w) && VectorAligned(out) &&
                (!adds || VectorAligned(delta.rows)) && (!p.write_sum || VectorAligned(*sum));
    LaunchNorm(p, out.rows, stream);
  });
}

}  // namespace

void AddRmsNorm(const TensorView& x, const Delta& delta, const TensorView& w, float eps,
                const TensorView& sum, const TensorView& out, cudaStream_t stream) {
  CHECK_EQ(x.rows, out.rows);
  Norm(x, delta, nullptr, w, eps, &sum, out, stream);
}

void AddRmsNormGathered(const TensorView& x, const Delta& delta, const int32_t* rows,
                        const TensorView& w, float eps, const TensorView& out,
                        cudaStream_t stream) {
  CHECK(rows != nullptr);
  Norm(x, delta, rows, w, eps, nullptr, out, stream);
}

}  // namespace orrery::kernels::cuda

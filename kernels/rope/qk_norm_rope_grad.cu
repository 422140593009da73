// A warp owns one head of one row at a time (head_columns.cuh). For the gradient it takes rows in a
// fixed stride and adds the norms' gradients up in registers; each block leaves one row of partial
// sums.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_sums.h"
#include "kernels/rope/head_columns.cuh"
#include "kernels/rope/qk_norm_rope_grad_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kGradBlocks = 528;

template <typename T>
struct RowsParams {
  Matrix<const T> qkv;
  Matrix<T> out;  // the gradient: dqkv, in place
  int64_t rows = 0, num_heads = 0, num_kv_heads = 0, d = 0;
  const T* q_norm = nullptr;
  const T* k_norm = nullptr;
  float eps = 0;
  const float* rope = nullptr;
  const int32_t* positions = nullptr;
  bool paired = false;
  float* parts = nullptr;  // [blocks, 2, D]
};

template <typename T>
__device__ __forceinline__ void StoreColumns(const Columns& u, T* head, int half, int lane,
                                             bool paired) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    StorePair(u.low[i], head + j, half - j, paired);
    StorePair(u.high[i], head + half + j, half - j, paired);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) QkNormRopeRowsKernel(RowsParams<T> p) {
  LetSuccessorStart();
  const int lane = threadIdx.x % 32, d = static_cast<int>(p.d), half = d / 2;
  const int64_t heads = p.num_heads + 2 * p.num_kv_heads;
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t t = item / heads, h = item % heads;
  const bool is_query = h < p.num_heads, is_value = h >= p.num_heads + p.num_kv_heads;
  const T* norm = is_query ? p.q_norm : is_value ? nullptr : p.k_norm;
  Columns w;
  if (norm != nullptr) w = LoadColumns(norm, half, lane, p.paired);
  WaitForPredecessor();
  if (t >= p.rows) return;
  Columns u = LoadColumns<const T>(p.qkv.Row(t) + h * d, half, lane, p.paired);
  if (norm != nullptr) NormColumns<T>(w, p.eps, d, &u);
  if (!is_value) RotateColumns(p.rope + int64_t{p.positions[t]} * d, half, lane, p.paired, &u);
  StoreColumns<T>(u, p.out.Row(t) + h * d, half, lane, p.paired);
}

// The transpose of Rotate.
__device__ __forceinline__ void RotateBack(float cos, float sin, float* a, float* b) {
  const float first = *a * cos + *b * sin;
  *b = *b * cos - *a * sin;
  *a = first;
}

__device__ __forceinline__ void RotateColumnsBack(const float* cos_sin, int half, int lane,
                                                  bool paired, Columns* u) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    const float2 cos = LoadPair(cos_sin + j, half - j, paired);
    const float2 sin = LoadPair(cos_sin + half + j, half - j, paired);
    RotateBack(cos.x, sin.x, &u->low[i].x, &u->high[i].x);
    RotateBack(cos.y, sin.y, &u->low[i].y, &u->high[i].y);
  }
}

// f(weight, x, dy, dw) of every column of a lane.
template <typename F>
__device__ __forceinline__ void ForColumns(const Columns& w, const Columns& x, Columns* dy,
                                           Columns* dw, const F& f) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    f(w.low[i].x, x.low[i].x, &dy->low[i].x, &dw->low[i].x);
    f(w.low[i].y, x.low[i].y, &dy->low[i].y, &dw->low[i].y);
    f(w.high[i].x, x.high[i].x, &dy->high[i].x, &dw->high[i].x);
    f(w.high[i].y, x.high[i].y, &dy->high[i].y, &dw->high[i].y);
  }
}

// dy becomes dx; adds to dw.
__device__ __forceinline__ void NormColumnsGrad(const Columns& w, const Columns& x, float eps,
                                                int d, Columns* dy, Columns* dw) {
  float squares = 0, product = 0;
  ForColumns(w, x, dy, dw, [&](float weight, float value, float* g, float*) {
    squares = fmaf(value, value, squares);
    product = fmaf(weight * *g, value, product);
  });
  const float r = rsqrtf(WarpSum(squares) / static_cast<float>(d) + eps);
  const float c = r * r * r / static_cast<float>(d) * WarpSum(product);
  ForColumns(w, x, dy, dw, [&](float weight, float value, float* g, float* sum) {
    *sum = fmaf(*g, value * r, *sum);
    *g = r * weight * *g - value * c;
  });
}

// Sums of the block's warps in order, to to[d].
__device__ __forceinline__ void StoreBlockSums(const Columns& dw, int half, int lane, int warp,
                                               float* to) {
  __shared__ float sums[kWarps][kMaxHeadDim];
  __syncthreads();
  StoreColumns<float>(dw, sums[warp], half, lane, /*paired=*/false);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * half; i += blockDim.x) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[w][i];
    to[i] = total;
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) QkNormRopeGradKernel(RowsParams<T> p) {
  LetSuccessorStart();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int d = static_cast<int>(p.d), half = d / 2;
  Columns q_norm = {}, k_norm = {}, dq = {}, dk = {};
  const bool normed = p.q_norm != nullptr;
  if (normed) {
    q_norm = LoadColumns(p.q_norm, half, lane, p.paired);
    k_norm = LoadColumns(p.k_norm, half, lane, p.paired);
  }
  WaitForPredecessor();
  // Values' gradients pass through: only queries and keys are visited.
  const int64_t heads = p.num_heads + p.num_kv_heads, items = p.rows * heads;
  for (int64_t item = int64_t{blockIdx.x} * kWarps + warp; item < items;
       item += int64_t{gridDim.x} * kWarps) {
    const int64_t t = item / heads, h = item % heads;
    T* gradient = p.out.Row(t) + h * d;
    Columns g = LoadColumns<T>(gradient, half, lane, p.paired);
    RotateColumnsBack(p.rope + int64_t{p.positions[t]} * d, half, lane, p.paired, &g);
    if (normed) {
      const Columns x = LoadColumns<const T>(p.qkv.Row(t) + h * d, half, lane, p.paired);
      if (h < p.num_heads) {
        NormColumnsGrad(q_norm, x, p.eps, d, &g, &dq);
      } else {
        NormColumnsGrad(k_norm, x, p.eps, d, &g, &dk);
      }
    }
    StoreColumns<T>(g, gradient, half, lane, p.paired);
  }
  if (!normed) return;
  float* part = p.parts + int64_t{blockIdx.x} * 2 * d;
  StoreBlockSums(dq, half, lane, warp, part);
  StoreBlockSums(dk, half, lane, warp, part + d);
}

template <typename T>
RowsParams<T> ParamsOf(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out) {
  RowsParams<T> p;
  p.qkv = AsMatrix<const T>(qkv);
  p.out = AsMatrix<T>(out);
  p.rows = qkv.rows;
  p.num_heads = args.heads.num_heads;
  p.num_kv_heads = args.heads.num_kv_heads;
  p.d = args.heads.head_dim;
  p.q_norm = static_cast<const T*>(args.q_norm.data);
  p.k_norm = static_cast<const T*>(args.k_norm.data);
  p.eps = args.eps;
  p.rope = args.rope;
  p.positions = args.positions;
  p.paired = args.heads.head_dim % 4 == 0 && qkv.row_stride % 2 == 0 && out.row_stride % 2 == 0 &&
             PairAligned(qkv.data, qkv.dtype) && PairAligned(out.data, qkv.dtype) &&
             PairAligned(args.q_norm.data, qkv.dtype) && PairAligned(args.k_norm.data, qkv.dtype) &&
             PairAligned(args.rope, DType::kFloat32);
  return p;
}

void CheckArguments(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out) {
  const HeadShape& heads = args.heads;
  CHECK(qkv.cols == heads.qkv_width() && out.cols == qkv.cols && out.rows == qkv.rows &&
        out.dtype == qkv.dtype);
  CHECK(heads.head_dim % 2 == 0 && heads.head_dim <= kMaxHeadDim) << heads.head_dim;
  CHECK((args.q_norm.data == nullptr) == (args.k_norm.data == nullptr));
}

}  // namespace

void QkNormRopeRows(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out,
                    cudaStream_t stream) {
  CheckArguments(qkv, args, out);
  if (qkv.rows == 0) return;
  const int64_t items = qkv.rows * (args.heads.num_heads + 2 * args.heads.num_kv_heads);
  ForDType(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(QkNormRopeRowsKernel<T>, static_cast<unsigned>(DivideUp(items, kWarps)), 32 * kWarps, 0,
           stream, ParamsOf<T>(qkv, args, out));
  });
}

int64_t QkNormRopeGradWorkspaceBytes(const HeadShape& heads) {
  return kGradBlocks * 2 * heads.head_dim * 4;
}

void QkNormRopeGrad(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& dqkv,
                    float* dq_norm, float* dk_norm, void* workspace, cudaStream_t stream) {
  CheckArguments(qkv, args, dqkv);
  if (qkv.rows == 0) return;
  const int64_t d = args.heads.head_dim;
  const int64_t items = qkv.rows * (args.heads.num_heads + args.heads.num_kv_heads);
  const int64_t blocks = std::min(kGradBlocks, DivideUp(items, kWarps));
  float* parts = static_cast<float*>(workspace);
  ForDType(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    RowsParams<T> p = ParamsOf<T>(qkv, args, dqkv);
    p.parts = parts;
    Launch(QkNormRopeGradKernel<T>, static_cast<unsigned>(blocks), 32 * kWarps, 0, stream, p);
  });
  if (args.q_norm.data == nullptr) return;
  AddPartialSums(parts, blocks, 2 * d, d, dq_norm, stream);
  AddPartialSums(parts + d, blocks, 2 * d, d, dk_norm, stream);
}

}  // namespace orrery::kernels::cuda

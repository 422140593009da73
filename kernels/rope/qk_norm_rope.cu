// A warp owns one head of one row. Lane l holds columns 2 (l + 32 i) and the next one of the first
// half of the head, and the same of the second half: both ends of each rotation.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/rope/qk_norm_rope_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHeadDim = 256;
constexpr int kPairs = kMaxHeadDim / 2 / 2 / 32;  // pairs of columns a lane, in each half

template <typename T>
struct RopeParams {
  Matrix<T> qkv;
  int64_t rows = 0, num_heads = 0, num_kv_heads = 0, d = 0;
  const T* q_norm = nullptr;
  const T* k_norm = nullptr;
  float eps = 0;
  const float* rope = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  T* k = nullptr;
  T* v = nullptr;
  bool swizzled = false;
  bool paired = false;  // two columns may be read at once
};

template <typename T>
__device__ __forceinline__ float2 LoadPair(const T* from, int valid, bool paired) {
  if (paired) {
    if (valid <= 0) return {0, 0};
    if constexpr (sizeof(T) == 4) {
      return *reinterpret_cast<const float2*>(from);
    } else {
      return UnpackBf16(*reinterpret_cast<const uint32_t*>(from));
    }
  }
  return {valid > 0 ? ToFloat(from[0]) : 0, valid > 1 ? ToFloat(from[1]) : 0};
}
template <typename T>
__device__ __forceinline__ void StorePair(float2 pair, T* to, int valid, bool paired) {
  if (paired) {
    if (valid <= 0) return;
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float2*>(to) = pair;
    } else {
      *reinterpret_cast<uint32_t*>(to) = PackBf16(pair.x, pair.y);
    }
    return;
  }
  if (valid > 0) to[0] = FromFloat<T>(pair.x);
  if (valid > 1) to[1] = FromFloat<T>(pair.y);
}

// (a, b) -> (a cos - b sin, b cos + a sin), products and sums rounded one by one as on the CPU.
__device__ __forceinline__ void Rotate(float cos, float sin, float* a, float* b) {
  const float first = __fsub_rn(__fmul_rn(*a, cos), __fmul_rn(*b, sin));
  *b = __fadd_rn(__fmul_rn(*b, cos), __fmul_rn(*a, sin));
  *a = first;
}

// The columns of a head that a lane holds.
struct Columns {
  float2 low[kPairs], high[kPairs];
};

template <typename T>
__device__ __forceinline__ Columns LoadColumns(const T* head, int half, int lane, bool paired) {
  Columns u;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    u.low[i] = LoadPair(head + j, half - j, paired);
    u.high[i] = LoadPair(head + half + j, half - j, paired);
  }
  return u;
}

template <typename T>
__device__ __forceinline__ void NormColumns(const Columns& w, float eps, int d, Columns* u) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    squares = fmaf(u->low[i].x, u->low[i].x, squares);
    squares = fmaf(u->low[i].y, u->low[i].y, squares);
    squares = fmaf(u->high[i].x, u->high[i].x, squares);
    squares = fmaf(u->high[i].y, u->high[i].y, squares);
  }
  const float mean = __fdiv_rn(WarpSum(squares), static_cast<float>(d));
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  const auto norm = [&](float weight, float x) {
    return RoundTo<T>(__fmul_rn(weight, RoundTo<T>(__fmul_rn(x, r))));
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    u->low[i] = {norm(w.low[i].x, u->low[i].x), norm(w.low[i].y, u->low[i].y)};
    u->high[i] = {norm(w.high[i].x, u->high[i].x), norm(w.high[i].y, u->high[i].y)};
  }
}

__device__ __forceinline__ void RotateColumns(const float* cos_sin, int half, int lane, bool paired,
                                              Columns* u) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    const float2 cos = LoadPair(cos_sin + j, half - j, paired);
    const float2 sin = LoadPair(cos_sin + half + j, half - j, paired);
    Rotate(cos.x, sin.x, &u->low[i].x, &u->high[i].x);
    Rotate(cos.y, sin.y, &u->low[i].y, &u->high[i].y);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) QkNormRopeKernel(RopeParams<T> p) {
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
  const int32_t position = p.positions[t];
  if (position < 0) return;
  T* head = p.qkv.Row(t) + h * d;
  Columns u = LoadColumns<T>(head, half, lane, p.paired);
  if (norm != nullptr) NormColumns<T>(w, p.eps, d, &u);
  if (!is_value) RotateColumns(p.rope + int64_t{position} * d, half, lane, p.paired, &u);
  T* cache = is_value ? p.v : p.k;
  const int64_t kv_head = h - p.num_heads - (is_value ? p.num_kv_heads : 0);
  const int64_t slot = is_query ? 0 : p.slots[t];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 2 * (lane + 32 * i);
    if (j >= half) break;
    T* low = head + j;
    T* high = head + half + j;
    if (!is_query) {  // the swizzle keeps eight columns together
      low = cache + KvIndex(slot, kv_head, j, p.num_kv_heads, d, p.swizzled);
      high = cache + KvIndex(slot, kv_head, half + j, p.num_kv_heads, d, p.swizzled);
    }
    StorePair(u.low[i], low, half - j, p.paired);
    StorePair(u.high[i], high, half - j, p.paired);
  }
}

// One block of threads a (copy, head): the first positions of a piece lie next to one another.
template <typename T>
__global__ void CopyKvKernel(const KvCopy* copies, T* k, T* v, int64_t num_kv_heads, int64_t d,
                             bool aligned) {
  LetSuccessorStart();
  WaitForPredecessor();
  const KvCopy copy = copies[blockIdx.x];
  const int64_t piece = kBlockTokens * d, n = copy.count * d;
  const int64_t from = (copy.from_block * num_kv_heads + blockIdx.y) * piece;
  const int64_t to = (copy.to_block * num_kv_heads + blockIdx.y) * piece;
  for (int64_t i = threadIdx.x * kVectorSize<T>; i < n; i += blockDim.x * kVectorSize<T>) {
    const uint4 keys = LoadUpTo(k + from + i, n - i, aligned);
    const uint4 values = LoadUpTo(v + from + i, n - i, aligned);
    StoreUpTo(keys, k + to + i, n - i, aligned);
    StoreUpTo(values, v + to + i, n - i, aligned);
  }
}

bool PairAligned(const void* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % (2 * SizeOf(dtype)) == 0;
}

bool Paired(const TensorView& qkv, const QkNormRopeArgs& args, const KvBlocks& kv) {
  return args.heads.head_dim % 4 == 0 && qkv.row_stride % 2 == 0 &&
         PairAligned(qkv.data, qkv.dtype) && PairAligned(args.q_norm.data, qkv.dtype) &&
         PairAligned(args.k_norm.data, qkv.dtype) && PairAligned(kv.k, qkv.dtype) &&
         PairAligned(kv.v, qkv.dtype) && PairAligned(args.rope, DType::kFloat32);
}

}  // namespace

void QkNormRopeWriteKv(const TensorView& qkv, const QkNormRopeArgs& args, const KvBlocks& kv,
                       cudaStream_t stream) {
  const HeadShape& heads = args.heads;
  CHECK_EQ(qkv.cols, heads.qkv_width());
  CHECK(heads.head_dim % 2 == 0 && heads.head_dim <= kMaxHeadDim) << heads.head_dim;
  CHECK(kv.dtype == qkv.dtype && kv.num_kv_heads == heads.num_kv_heads &&
        kv.head_dim == heads.head_dim);
  if (qkv.rows == 0) return;
  ForDType(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    RopeParams<T> p;
    p.qkv = AsMatrix<T>(qkv);
    p.rows = qkv.rows;
    p.num_heads = heads.num_heads;
    p.num_kv_heads = heads.num_kv_heads;
    p.d = heads.head_dim;
    p.q_norm = static_cast<const T*>(args.q_norm.data);
    p.k_norm = static_cast<const T*>(args.k_norm.data);
    p.eps = args.eps;
    p.rope = args.rope;
    p.positions = args.positions;
    p.slots = args.slots;
    p.k = static_cast<T*>(kv.k);
    p.v = static_cast<T*>(kv.v);
    p.swizzled = kv.swizzled();
    p.paired = Paired(qkv, args, kv);
    const int64_t items = qkv.rows * (heads.num_heads + 2 * heads.num_kv_heads);
    Launch(QkNormRopeKernel<T>, static_cast<unsigned>(DivideUp(items, kWarps)), 32 * kWarps, 0,
           stream, p);
  });
}

void CopyKv(const KvCopy* copies, int64_t n, const KvBlocks& kv, cudaStream_t stream) {
  if (n == 0) return;
  const bool aligned = kv.head_dim * SizeOf(kv.dtype) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(kv.k) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(kv.v) % 16 == 0;
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(kv.num_kv_heads));
  ForDType(kv.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(CopyKvKernel<T>, grid, 128, 0, stream, copies, static_cast<T*>(kv.k),
           static_cast<T*>(kv.v), kv.num_kv_heads, kv.head_dim, aligned);
  });
}

}  // namespace orrery::kernels::cuda

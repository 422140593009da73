// A warp owns one head of one row (head_columns.cuh).
#include "kernels/cuda/launch.cuh"
#include "kernels/rope/head_columns.cuh"
#include "kernels/rope/qk_norm_rope_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;

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

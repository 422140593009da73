// A warp owns one head of one row (head_columns.cuh), or where 16 bytes can be read at once
// several: the same sums in the same order.
#include "kernels/attention/float8_kv.cuh"
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

// A row of a piece in float8, of which kLanes lanes hold eight values of each half.
template <int D>
__device__ __forceinline__ void StoreFloat8(float (&low)[8], float (&high)[8], int lane, int row,
                                            char* piece) {
  constexpr int kLanes = D / 16;
  float largest = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    low[e] = RoundTo<BFloat16>(low[e]);
    high[e] = RoundTo<BFloat16>(high[e]);
    largest = fmaxf(largest, fmaxf(fabsf(low[e]), fabsf(high[e])));
  }
  const uint32_t lanes = ((1u << kLanes) - 1) << lane / kLanes * kLanes;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
  }
  const int k = Float8ExponentOf(largest), c = lane % kLanes * 8;
  *reinterpret_cast<uint2*>(piece + row * D + c) = PackFloat8(low, k);
  *reinterpret_cast<uint2*>(piece + row * D + D / 2 + c) = PackFloat8(high, k);
  if (c == 0) piece[kBlockTokens * D + row] = static_cast<char>(k);
}

// A lane holds 16 bytes of the first half of a head, and the same of the second: columns of four
// lanes of QkNormRopeKernel, whose sums it takes in that kernel's order.
template <int D, KvFormat kFormat>
__global__ void __launch_bounds__(32 * kWarps) QkNormRopeVectors(RopeParams<BFloat16> p) {
  constexpr int kHalf = D / 2, kLanes = kHalf / 8, kHeads = 32 / kLanes;  // of a head; of a warp
  LetSuccessorStart();
  const int lane = static_cast<int>(threadIdx.x) % 32, c = lane % kLanes * 8;
  const int q_heads = static_cast<int>(p.num_heads), kv_heads = static_cast<int>(p.num_kv_heads);
  const unsigned items = static_cast<unsigned>((q_heads + 2 * kv_heads + kHeads - 1) / kHeads);
  const unsigned item = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t t = item / items;
  const int h = static_cast<int>(item % items) * kHeads + lane / kLanes;
  const bool is_query = h < q_heads, is_value = h >= q_heads + kv_heads;
  const BFloat16* norm = is_query ? p.q_norm : is_value ? nullptr : p.k_norm;
  uint4 low_weight = {}, high_weight = {};
  if (norm != nullptr) {
    low_weight = *reinterpret_cast<const uint4*>(norm + c);
    high_weight = *reinterpret_cast<const uint4*>(norm + kHalf + c);
  }
  WaitForPredecessor();
  if (t >= p.rows) return;
  // Loads first, none of which waits for another but the rotation's for the position.
  const bool present = h < q_heads + 2 * kv_heads;
  const int32_t position = p.positions[t], slot = p.slots[t];
  BFloat16* head = p.qkv.Row(t) + h * D;
  uint4 low_raw = {}, high_raw = {};
  if (present) {
    low_raw = *reinterpret_cast<const uint4*>(head + c);
    high_raw = *reinterpret_cast<const uint4*>(head + kHalf + c);
  }
  if (position < 0) return;
  float4 cos[2], sin[2];
  const float* rope = p.rope + int64_t{position} * D + c;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    cos[i] = *reinterpret_cast<const float4*>(rope + 4 * i);
    sin[i] = *reinterpret_cast<const float4*>(rope + kHalf + 4 * i);
  }
  float low[8], high[8];
  Unpack<BFloat16>(low_raw, low);
  Unpack<BFloat16>(high_raw, high);
  float squares[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = fmaf(low[2 * i], low[2 * i], 0.0f);
    sum = fmaf(low[2 * i + 1], low[2 * i + 1], sum);
    sum = fmaf(high[2 * i], high[2 * i], sum);
    squares[i] = fmaf(high[2 * i + 1], high[2 * i + 1], sum);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      squares[i] += __shfl_xor_sync(~0u, squares[i], step);
    }
  }
  if (!present) return;
  if (norm != nullptr) {
    const float sum = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    const float mean = __fdiv_rn(sum, static_cast<float>(D));
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    float w[8];
    const auto scale = [&](float(&x)[8]) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        x[e] = RoundTo<BFloat16>(__fmul_rn(w[e], RoundTo<BFloat16>(__fmul_rn(x[e], r))));
      }
    };
    Unpack<BFloat16>(low_weight, w);
    scale(low);
    Unpack<BFloat16>(high_weight, w);
    scale(high);
  }
  if (!is_value) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Rotate(cos[i].x, sin[i].x, &low[4 * i], &high[4 * i]);
      Rotate(cos[i].y, sin[i].y, &low[4 * i + 1], &high[4 * i + 1]);
      Rotate(cos[i].z, sin[i].z, &low[4 * i + 2], &high[4 * i + 2]);
      Rotate(cos[i].w, sin[i].w, &low[4 * i + 3], &high[4 * i + 3]);
    }
  }
  BFloat16* to_low = head + c;
  BFloat16* to_high = head + kHalf + c;
  if (kFormat == KvFormat::kFloat8 && !is_query) {
    const int64_t kv_head = h - q_heads - (is_value ? kv_heads : 0);
    const int64_t piece = slot / kBlockTokens * kv_heads + kv_head, row = slot % kBlockTokens;
    char* to = reinterpret_cast<char*>(is_value ? p.v : p.k) + piece * kBlockTokens * (D + 1);
    return StoreFloat8<D>(low, high, lane, static_cast<int>(row), to);
  }
  if (!is_query) {  // the swizzle keeps eight columns together
    BFloat16* cache = is_value ? p.v : p.k;
    const int64_t kv_head = h - q_heads - (is_value ? kv_heads : 0);
    to_low = cache + KvIndex(slot, kv_head, c, kv_heads, D, p.swizzled);
    to_high = cache + KvIndex(slot, kv_head, kHalf + c, kv_heads, D, p.swizzled);
  }
  *reinterpret_cast<uint4*>(to_low) = Pack<BFloat16>(low);
  *reinterpret_cast<uint4*>(to_high) = Pack<BFloat16>(high);
}

// One block of threads a (copy, head): the first positions of a panel lie next to one another.
template <typename T>
__global__ void CopyKvKernel(const KvCopy* copies, T* k, T* v, int64_t num_kv_heads, int64_t d,
                             int64_t panel_columns, bool aligned) {
  LetSuccessorStart();
  WaitForPredecessor();
  const KvCopy copy = copies[blockIdx.x];
  const int64_t piece = kBlockTokens * d, n = copy.count * panel_columns;
  for (int64_t panel = 0; panel < piece; panel += kBlockTokens * panel_columns) {
    const int64_t from = (copy.from_block * num_kv_heads + blockIdx.y) * piece + panel;
    const int64_t to = (copy.to_block * num_kv_heads + blockIdx.y) * piece + panel;
    for (int64_t i = threadIdx.x * kVectorSize<T>; i < n; i += blockDim.x * kVectorSize<T>) {
      const uint4 keys = LoadUpTo(k + from + i, n - i, aligned);
      const uint4 values = LoadUpTo(v + from + i, n - i, aligned);
      StoreUpTo(keys, k + to + i, n - i, aligned);
      StoreUpTo(values, v + to + i, n - i, aligned);
    }
  }
}

// The same for pieces in float8: rows of D bytes, and their exponents.
__global__ void CopyFloat8KvKernel(const KvCopy* copies, char* k, char* v, int64_t num_kv_heads,
                                   int d) {
  LetSuccessorStart();
  WaitForPredecessor();
  const KvCopy copy = copies[blockIdx.x];
  const int64_t piece = kBlockTokens * (d + 1);
  const int64_t from = (copy.from_block * num_kv_heads + blockIdx.y) * piece;
  const int64_t to = (copy.to_block * num_kv_heads + blockIdx.y) * piece;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (char* cache : {k, v}) {
    for (int i = thread * 16; i < copy.count * d; i += threads * 16) {
      *reinterpret_cast<uint4*>(cache + to + i) = *reinterpret_cast<uint4*>(cache + from + i);
    }
    const int64_t exponent = kBlockTokens * d + thread;
    if (thread < copy.count) cache[to + exponent] = cache[from + exponent];
  }
}

bool Paired(const TensorView& qkv, const QkNormRopeArgs& args, const KvBlocks& kv) {
  return args.heads.head_dim % 4 == 0 && qkv.row_stride % 2 == 0 &&
         PairAligned(qkv.data, qkv.dtype) && PairAligned(args.q_norm.data, qkv.dtype) &&
         PairAligned(args.k_norm.data, qkv.dtype) && PairAligned(kv.k, qkv.dtype) &&
         PairAligned(kv.v, qkv.dtype) && PairAligned(args.rope, DType::kFloat32);
}

// Whether QkNormRopeVectors can serve.
bool InVectors(const TensorView& qkv, const QkNormRopeArgs& args, const KvBlocks& kv) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const int64_t d = args.heads.head_dim;
  const int64_t warps = qkv.rows * (args.heads.num_heads + 2 * args.heads.num_kv_heads);
  return qkv.dtype == DType::kBFloat16 && (d == 64 || d == 128) && qkv.row_stride % 8 == 0 &&
         aligned(qkv.data) && aligned(args.q_norm.data) && aligned(args.k_norm.data) &&
         aligned(kv.k) && aligned(kv.v) && aligned(args.rope) && warps < int64_t{1} << 31;
}

template <int D>
void RunVectors(const RopeParams<BFloat16>& p, KvFormat format, cudaStream_t stream) {
  constexpr int64_t kHeads = 32 / (D / 16);
  const int64_t items = p.rows * DivideUp(p.num_heads + 2 * p.num_kv_heads, kHeads);
  Launch(format == KvFormat::kFloat8 ? QkNormRopeVectors<D, KvFormat::kFloat8>
                                     : QkNormRopeVectors<D, KvFormat::kModel>,
         static_cast<unsigned>(DivideUp(items, kWarps)), 32 * kWarps, 0, stream, p);
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
    if constexpr (sizeof(T) == 2) {
      if (InVectors(qkv, args, kv)) {
        return heads.head_dim == 128 ? RunVectors<128>(p, kv.format, stream)
                                     : RunVectors<64>(p, kv.format, stream);
      }
    }
    CHECK(kv.format == KvFormat::kModel) << "float8 keys and values of rows that are not aligned";
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
  if (kv.format == KvFormat::kFloat8) {
    return Launch(CopyFloat8KvKernel, grid, 128, 0, stream, copies, static_cast<char*>(kv.k),
                  static_cast<char*>(kv.v), kv.num_kv_heads, static_cast<int>(kv.head_dim));
  }
  ForDType(kv.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(CopyKvKernel<T>, grid, 128, 0, stream, copies, static_cast<T*>(kv.k),
           static_cast<T*>(kv.v), kv.num_kv_heads, kv.head_dim, kv.panel_columns(), aligned);
  });
}

}  // namespace orrery::kernels::cuda

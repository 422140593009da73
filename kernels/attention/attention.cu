#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_simple.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 4;    // a chunk's blocks are dealt to them in turn
constexpr int kQueries = 8;  // heads of a group, padded: the narrow side of the product
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
constexpr int kBlocksPerWarp = kChunkBlocks / kWarps;  // of a chunk
constexpr float kLog2E = 1.4426950408889634f;

struct Params {
  const bf16* queries;
  int64_t query_stride;
  const bf16* k;
  const bf16* v;
  int num_kv_heads, group;
  float scale_log2;
  AttentionRows rows;
  bf16* out;
  int64_t out_stride;
  float* partials;  // null: no split
  int* finished;    // chunks of each (row, key-value head) that are written; zero between launches
  int num_chunks;   // of the workspace
};

template <int D>
struct Layout {
  static constexpr int kPieceBytes = kBlockTokens * D * 2;  // keys (or values) of a block and head
  static constexpr int kStageBytes = 2 * kPieceBytes;
  static constexpr int kStages = D == 128 ? 3 : 5;
  static constexpr int kMergeFloats = kWarps * D * kQueries;
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes + 4 * kMergeFloats;
  static constexpr int kPerThread = D * kQueries / (32 * kWarps);  // outputs a thread folds
};

// Softmax state of one query over some keys: maximum m of the scores (in powers of two), sum l of
// exp2(s - m), and outputs weighted alike. Folds `other` behind.
struct FoldFactors {
  float mine, other, m;
};
__device__ __forceinline__ FoldFactors Factors(float m, float other_m) {
  FoldFactors f;
  f.m = fmaxf(m, other_m);
  f.mine = exp2f(m - f.m);  // m may be -infinity (nothing folded yet): 0
  f.other = exp2f(other_m - f.m);
  return f;
}

template <int kPerThread>
struct Folded {
  float m[kPerThread], l[kPerThread], o[kPerThread];

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      m[i] = -INFINITY;
      l[i] = o[i] = 0;
    }
  }
  __device__ void Fold(int i, float other_m, float other_l, float other_o) {
    const FoldFactors f = Factors(m[i], other_m);
    m[i] = f.m;
    l[i] = l[i] * f.mine + other_l * f.other;
    o[i] = o[i] * f.mine + other_o * f.other;
  }
};

// Thread t folds outputs [t * kPerThread, ...) of the [D, 8] matrix.
template <int D>
__device__ void StoreOut(const Params& p, int row, int head,
                         const Folded<Layout<D>::kPerThread>& folded) {
  constexpr int kPer = Layout<D>::kPerThread;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int at = static_cast<int>(threadIdx.x) * kPer + i;
    const int query = at % kQueries, d = at / kQueries;
    if (query < p.group) {
      p.out[row * p.out_stride + (head * p.group + query) * D + d] =
          __float2bfloat16_rn(folded.o[i] / folded.l[i]);
    }
  }
}

// One warp's online softmax over its blocks of one chunk.
template <int D>
struct WarpChunk {
  float m[2], l[2];    // queries 2 t and 2 t + 1; l is this lane's share
  float o[D / 16][4];  // [d, query] fragments

  __device__ void Clear() {
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
  }

  // keys, values: swizzled pieces in shared memory. limit: number of keys of this block that the
  // query sees (16 or more: all).
  __device__ void Block(const char* keys, const char* values, const uint32_t (&q)[D / 16][2],
                        float scale_log2, int limit, int lane) {
    float s[4] = {};
    {
      const int key = lane % 16;
      const char* row = keys + key * D * 2;
#pragma unroll
      for (int kk = 0; kk < D / 16; ++kk) {
        uint32_t a[4];
        LoadMatrix4(a, row + ((2 * kk + lane / 16) ^ (key & 7)) * 16);
        Mma16816(s, a, q[kk][0], q[kk][1]);
      }
    }
    const int g = lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = g + (i >= 2 ? 8 : 0) < limit ? s[i] * scale_log2 : -INFINITY;
    float alpha[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float largest = fmaxf(s[c], s[c + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
      }
      const float next = fmaxf(m[c], largest);
      alpha[c] = exp2f(m[c] - next);
      m[c] = next;
      s[c] = exp2f(s[c] - next);
      s[c + 2] = exp2f(s[c + 2] - next);
      l[c] = l[c] * alpha[c] + (s[c] + s[c + 2]);
    }
    const uint32_t p0 = TransposeMatrix(PackBf16(s[0], s[1]));
    const uint32_t p1 = TransposeMatrix(PackBf16(s[2], s[3]));
    const int key = lane / 16 * 8 + lane % 8;
    const char* row = values + key * D * 2;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      o[i][0] *= alpha[0];
      o[i][1] *= alpha[1];
      o[i][2] *= alpha[0];
      o[i][3] *= alpha[1];
      uint32_t a[4];
      LoadMatrix4Transposed(a, row + ((2 * i + lane / 8 % 2) ^ (key & 7)) * 16);
      Mma16816(o[i], a, p0, p1);
    }
  }
};

// grid: (rows * key-value heads, chunks or 1).
template <int D>
__global__ void __launch_bounds__(32 * kWarps) PagedAttention(const __grid_constant__ Params p) {
  using L = Layout<D>;
  extern __shared__ __align__(128) char shared_memory[];
  float* merge_o = reinterpret_cast<float*>(shared_memory + kWarps * L::kStages * L::kStageBytes);
  __shared__ float merge_m[kWarps][kQueries], merge_l[kWarps][kQueries];
  __shared__ uint64_t full[kWarps][L::kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) / p.num_kv_heads;
  const int head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  if (lane == 0) {
    for (int s = 0; s < L::kStages; ++s) BarrierInit(&full[warp][s], 1);
    BarrierInitFence();
  }
  __syncwarp();
  LetSuccessorStart();
  WaitForPredecessor();

  const int position = p.rows.positions[row];
  const int first_chunk = p.partials != nullptr ? static_cast<int>(blockIdx.y) : 0;
  if (position < first_chunk * static_cast<int>(kChunkTokens)) return;
  const int last_block = position / static_cast<int>(kBlockTokens);
  const int first_block = first_chunk * kChunkBlocks;
  const int end_block =
      p.partials != nullptr ? min(last_block + 1, first_block + kChunkBlocks) : last_block + 1;
  const int num_chunks = (end_block - first_block + kChunkBlocks - 1) / kChunkBlocks;
  // This warp's blocks: first_block + warp + 4 i.
  const int mine = (end_block - first_block - warp + kWarps - 1) / kWarps;
  const int32_t* table =
      p.rows.block_tables + p.rows.sequence_of[row] * p.rows.table_stride + first_block + warp;

  int ids = 0;  // lane i holds the id of block i of the present 32
  const auto block_id = [&](int i) {
    if (i % 32 == 0) ids = i + lane < mine ? table[(i + lane) * kWarps] : 0;
    return __shfl_sync(0xffffffffu, ids, i % 32);
  };
  const uint64_t policy = EvictFirstPolicy();
  char* stages = shared_memory + warp * L::kStages * L::kStageBytes;
  const auto fetch = [&](int i, int stage) {
    const int64_t piece =
        (static_cast<int64_t>(block_id(i)) * p.num_kv_heads + head) * (L::kPieceBytes / 2);
    if (lane == 0) {
      char* to = stages + stage * L::kStageBytes;
      BarrierArriveExpect(&full[warp][stage], L::kStageBytes);
      BulkCopyHinted(to, p.k + piece, L::kPieceBytes, &full[warp][stage], policy);
      BulkCopyHinted(to + L::kPieceBytes, p.v + piece, L::kPieceBytes, &full[warp][stage], policy);
    }
  };
  for (int i = 0; i < L::kStages && i < mine; ++i) fetch(i, i);

  uint32_t q[D / 16][2];
  {
    const int g = lane / 4;
    const bf16* query = p.queries + row * p.query_stride + (head * p.group + g) * D;
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      const bf16* at = query + kk * 16 + 2 * (lane % 4);
      q[kk][0] = g < p.group ? *reinterpret_cast<const uint32_t*>(at) : 0;
      q[kk][1] = g < p.group ? *reinterpret_cast<const uint32_t*>(at + 8) : 0;
    }
  }

  Folded<L::kPerThread> folded;
  folded.Clear();
  int i = 0, stage = 0;
  uint32_t phase = 0;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    WarpChunk<D> state;
    state.Clear();
    for (int end = min(i + kBlocksPerWarp, mine); i < end; ++i) {
      BarrierWait(&full[warp][stage], phase);
      const char* keys = stages + stage * L::kStageBytes;
      const int first_key = (first_block + warp + kWarps * i) * static_cast<int>(kBlockTokens);
      state.Block(keys, keys + L::kPieceBytes, q, p.scale_log2, position + 1 - first_key, lane);
      __syncwarp();
      if (i + L::kStages < mine) fetch(i + L::kStages, stage);
      if (++stage == L::kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    // The chunk's four parts meet.
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) state.l[c] += __shfl_xor_sync(0xffffffffu, state.l[c], d);
    }
    if (lane < 4) {
      merge_m[warp][2 * lane] = state.m[0];
      merge_m[warp][2 * lane + 1] = state.m[1];
      merge_l[warp][2 * lane] = state.l[0];
      merge_l[warp][2 * lane + 1] = state.l[1];
    }
    float* o = merge_o + warp * D * kQueries;
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      const int at = (t * 16 + lane / 4) * kQueries + 2 * (lane % 4);
      *reinterpret_cast<float2*>(o + at) = make_float2(state.o[t][0], state.o[t][1]);
      *reinterpret_cast<float2*>(o + at + 8 * kQueries) = make_float2(state.o[t][2], state.o[t][3]);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < L::kPerThread; ++e) {
      const int at = static_cast<int>(threadIdx.x) * L::kPerThread + e, query = at % kQueries;
      float m = merge_m[0][query];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) m = fmaxf(m, merge_m[w][query]);
      float sum = 0, out = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = exp2f(merge_m[w][query] - m);
        sum += factor * merge_l[w][query];
        out += factor * merge_o[w * D * kQueries + at];
      }
      folded.Fold(e, m, sum, out);
    }
    __syncthreads();
  }

  if (p.partials == nullptr) return StoreOut<D>(p, row, head, folded);
  const int all_chunks = last_block / kChunkBlocks + 1;
  if (all_chunks == 1) return StoreOut<D>(p, row, head, folded);
  float* partials =
      p.partials + static_cast<int64_t>(blockIdx.x) * p.num_chunks * AttentionPartialFloats(D);
  float* partial = partials + first_chunk * AttentionPartialFloats(D);
#pragma unroll
  for (int e = 0; e < L::kPerThread; ++e) {
    const int at = static_cast<int>(threadIdx.x) * L::kPerThread + e;
    if (at < kQueries) {
      partial[at] = folded.m[e];
      partial[kQueries + at] = folded.l[e];
    }
    partial[2 * kQueries + at] = folded.o[e];
  }
  // Whoever writes the last of a row's chunks folds all of them, in order.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(&p.finished[blockIdx.x], 1) == all_chunks - 1;
    if (last) p.finished[blockIdx.x] = 0;  // for the next launch
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  folded.Clear();
#pragma unroll 4
  for (int c = 0; c < all_chunks; ++c, partials += AttentionPartialFloats(D)) {
#pragma unroll
    for (int e = 0; e < L::kPerThread; ++e) {
      const int at = static_cast<int>(threadIdx.x) * L::kPerThread + e, query = at % kQueries;
      folded.Fold(e, __ldcg(partials + query), __ldcg(partials + kQueries + query),
                  __ldcg(partials + 2 * kQueries + at));
    }
  }
  StoreOut<D>(p, row, head, folded);
}

template <int D>
void Run(const Params& params, int64_t rows, const AttentionPlan& plan, cudaStream_t stream) {
  static const bool allowed = [] {
    AllowSharedBytes(PagedAttention<D>, Layout<D>::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const auto items = static_cast<unsigned>(rows * params.num_kv_heads);
  Launch(PagedAttention<D>, dim3(items, static_cast<unsigned>(plan.num_chunks)), dim3(32 * kWarps),
         Layout<D>::kSharedBytes, stream, params);
}

}  // namespace

void Attention(const TensorView& qkv, const HeadShape& heads, float scale,
               const AttentionRows& rows, const KvBlocks& kv, const AttentionPlan& plan,
               void* workspace, const TensorView& out, cudaStream_t stream) {
  CHECK(qkv.dtype == kv.dtype && out.dtype == kv.dtype && out.cols == heads.q_width());
  if (qkv.rows == 0) return;
  const bool fits = kv.dtype == DType::kBFloat16 && heads.group() <= kQueries &&
                    (heads.head_dim == 128 || heads.head_dim == 64) && qkv.row_stride % 2 == 0;
  if (!fits) return AttentionSimple(qkv, heads, scale, rows, kv, out, stream);
  Params params;
  params.queries = static_cast<const bf16*>(qkv.data);
  params.query_stride = qkv.row_stride;
  params.k = static_cast<const bf16*>(kv.k);
  params.v = static_cast<const bf16*>(kv.v);
  params.num_kv_heads = static_cast<int>(heads.num_kv_heads);
  params.group = static_cast<int>(heads.group());
  params.scale_log2 = scale * kLog2E;
  params.rows = rows;
  params.out = static_cast<bf16*>(out.data);
  params.out_stride = out.row_stride;
  params.finished = static_cast<int*>(workspace);
  params.partials = plan.split ? static_cast<float*>(workspace) + kAttentionCounters : nullptr;
  params.num_chunks = static_cast<int>(plan.num_chunks);
  if (heads.head_dim == 128) return Run<128>(params, qkv.rows, plan, stream);
  Run<64>(params, qkv.rows, plan, stream);
}

}  // namespace orrery::kernels::cuda

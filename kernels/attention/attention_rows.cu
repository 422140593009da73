// Rows alone: a thread block takes one row's queries of one key-value head through all its keys, or
// through one chunk of them.
//
// Its four warps bring a block of a step each and score it; all take the softmax of the whole step,
// and each then adds the step's values into its quarter of the outputs' columns. Scores of even and
// odd steps lie apart, so one barrier a step does: behind it nobody reads the step before, and its
// memory is filled again.
//
// What the passes before left in the cache is on its way before the predecessor is done
// (AttentionRows::settled).
#include "kernels/attention/attention_kernels.cuh"
#include "kernels/attention/attention_order.cuh"
#include "kernels/attention/float8_kv.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = kStepBlocks;
constexpr int kQueries = kMaxGroup;  // heads of a group, padded: the narrow side of the product
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;

struct RowParams {
  AttentionParams a;
  const int32_t* lone_rows;  // null: every row
  float* partials;           // null: no split
  int* finished;             // chunks of each item that are written; zero between launches
  int num_chunks;            // of the workspace
};

template <int D>
struct Layout {
  static constexpr int kPieceBytes = kBlockTokens * D * 2;  // keys (or values) of a block and head
  static constexpr int kTiles = D / 16 / kWarps;            // of 16 columns of the output, a warp
};

// Pieces as the cache holds them, a stage a step; in float8 then the same pieces unpacked, the keys
// of one step (a warp reads only those that it unpacked) and the values of two (read by all warps,
// a barrier later). kWhole: all steps of a chunk are in flight at once.
template <int D, KvFormat kFormat, bool kWhole>
struct Stages {
  static constexpr bool kFloat8 = kFormat == KvFormat::kFloat8;
  static constexpr int kPieceBytes = kBlockTokens * (kFloat8 ? D + 1 : D * 2);
  static constexpr int kStageBytes = 2 * kStepBlocks * kPieceBytes;
  static constexpr int kStages = !kWhole && (D == 128 || !kFloat8) ? 3 : kChunkSteps;
  static constexpr int kUnpackedBytes = kFloat8 ? 3 * kStepBlocks * Layout<D>::kPieceBytes : 0;
  static constexpr int kSharedBytes = kStages * kStageBytes + kUnpackedBytes;
};

// Scores of a step by query; the padding spreads a warp's reads over the banks.
using Scores = float[kQueries][kStepTokens + 8];

// Outputs of a warp, [16 columns, 8 queries] fragments, and the state of query lane / 4.
template <int D>
struct Outputs {
  static constexpr int kTiles = Layout<D>::kTiles;
  SoftmaxState state;
  float o[kTiles][4] = {};

  // A value of query lane / 4, for the two queries of a fragment's columns.
  static __device__ __forceinline__ float2 OfColumns(float x) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return make_float2(__shfl_sync(0xffffffffu, x, lane % 4 * 8),
                       __shfl_sync(0xffffffffu, x, lane % 4 * 8 + 4));
  }
  __device__ __forceinline__ void FoldIn(const Outputs& chunk, float scale_log2) {
    const FoldFactors f = Fold(chunk.state, scale_log2, &state);
    const float2 totals = OfColumns(f.total), chunks = OfColumns(f.chunk);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        o[i][c] = c % 2 == 0 ? Folded(o[i][c], chunk.o[i][c], {totals.x, chunks.x})
                             : Folded(o[i][c], chunk.o[i][c], {totals.y, chunks.y});
      }
    }
  }
};

// A warp's copies: of every step the keys and the values of one block.
template <typename L>
struct PieceCopies {
  const AttentionParams& p;
  const int head, warp, lane, mine;  // mine: blocks that this warp brings
  const int32_t* table;
  char* stages;
  uint64_t* full;
  int ids = 0;  // lane i holds the id of block i of the present 32
  const uint64_t policy = EvictFirstPolicy();

  // Block n, of step n; for n in ascending order.
  __device__ __forceinline__ void Fetch(int n, int stage) {
    if (n % 32 == 0) ids = n + lane < mine ? __ldcg(table + (n + lane) * kStepBlocks) : 0;
    const int64_t id = __shfl_sync(0xffffffffu, ids, n % 32);
    if (lane > 0) return;
    if (n >= mine) return BarrierArrive(&full[stage]);
    const int64_t piece = (id * p.num_kv_heads + head) * L::kPieceBytes;
    char* to = stages + stage * L::kStageBytes + warp * L::kPieceBytes;
    BarrierArriveExpect(&full[stage], 2 * L::kPieceBytes);
    BulkCopyHinted(to, p.k + piece, L::kPieceBytes, &full[stage], policy);
    BulkCopyHinted(to + kStepBlocks * L::kPieceBytes, p.v + piece, L::kPieceBytes, &full[stage],
                   policy);
  }
};

// The row's queries of a group as the right operand; zeros past the group.
template <int D>
__device__ __forceinline__ void LoadQueries(const AttentionParams& p, int row, int head,
                                            uint32_t (&q)[D / 16][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  const bf16* query = p.queries + row * p.query_stride + (head * p.group + g) * D;
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    const bf16* at = query + kk * 16 + 2 * (lane % 4);
    q[kk][0] = g < p.group ? *reinterpret_cast<const uint32_t*>(at) : 0;
    q[kk][1] = g < p.group ? *reinterpret_cast<const uint32_t*>(at + 8) : 0;
  }
}

// The warp's float8 pieces of a step's keys and values.
template <int D>
__device__ __forceinline__ void UnpackOwn(const char* keys, const char* values, char* to_keys,
                                          char* to_values) {
  constexpr int kFrom = kBlockTokens * (D + 1), kTo = Layout<D>::kPieceBytes;
  constexpr int kPanelBytes = kBlockTokens * 128;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  UnpackPiece<D>(keys + warp * kFrom, to_keys + warp * kTo, kPanelBytes);
  UnpackPiece<D>(values + warp * kFrom, to_values + warp * kTo, kPanelBytes);
  __syncwarp();
}

// [16 keys, 8 queries] of a block against all queries, into the step's scores.
template <int D>
__device__ __forceinline__ void ScoreBlock(const char* keys, const uint32_t (&q)[D / 16][2],
                                           int block, Scores& scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float s[4] = {};
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    uint32_t a[4];
    LoadMatrix4(a, keys + PieceOffset(lane % 16, kk, lane / 16));
    Mma16816(s, a, q[kk][0], q[kk][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[2 * (lane % 4) + i % 2][block * kBlockTokens + lane / 4 + i / 2 * 8] = s[i];
  }
}

// One step: softmax of its scores, of which the query sees `limit` keys, and its values added.
template <int D>
__device__ __forceinline__ void AddStep(const Scores& scores, const char* values, int num_blocks,
                                        int limit, float scale_log2, Outputs<D>* out) {
  constexpr int kTiles = Layout<D>::kTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float s[16];
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int key = StepKey(i, lane % 4);
    const float2 pair = *reinterpret_cast<const float2*>(&scores[lane / 4][key]);
    s[i] = key < limit ? pair.x : -INFINITY;
    s[i + 1] = key + 1 < limit ? pair.y : -INFINITY;
  }
  const float2 factors = Outputs<D>::OfColumns(SoftmaxStep(s, scale_log2, &out->state));
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) out->o[i][c] *= c % 2 == 0 ? factors.x : factors.y;
  }
  const int key = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int b = 0; b < kStepBlocks; ++b) {
    if (b >= num_blocks) break;
    const char* piece = values + b * Layout<D>::kPieceBytes;
    const uint32_t p0 = PackBf16(s[4 * b], s[4 * b + 1]);
    const uint32_t p1 = PackBf16(s[4 * b + 2], s[4 * b + 3]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t a[4];
      LoadMatrix4Transposed(a, piece + PieceOffset(key, warp * kTiles + i, lane / 8 % 2));
      Mma16816(out->o[i], a, p0, p1);
    }
  }
}

// A transposition gives each lane two neighbouring columns of one query.
template <int D>
__device__ __forceinline__ void StoreOut(const AttentionParams& p, int row, int head,
                                         const Outputs<D>& total) {
  constexpr int kTiles = Layout<D>::kTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float2 scale = Outputs<D>::OfColumns(__fdiv_rn(1.0f, total.state.l));
  const int query = lane / 4;
  bf16* out = p.out + row * p.out_stride + (head * p.group + query) * D + 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float(&o)[4] = total.o[i];
    const uint32_t low = TransposeMatrix(PackBf16(o[0] * scale.x, o[1] * scale.y));
    const uint32_t high = TransposeMatrix(PackBf16(o[2] * scale.x, o[3] * scale.y));
    if (query >= p.group) continue;
    bf16* to = out + (warp * kTiles + i) * 16;
    *reinterpret_cast<uint32_t*>(to) = low;
    *reinterpret_cast<uint32_t*>(to + 8) = high;
  }
}

// What a chunk leaves: m and l of 8 queries, then every thread's outputs.
template <int D>
__device__ __forceinline__ void StorePartial(const Outputs<D>& chunk, float* partial) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 32 && thread % 4 == 0) {
    partial[thread / 4] = chunk.state.m;
    partial[kQueries + thread / 4] = chunk.state.l;
  }
#pragma unroll
  for (int i = 0; i < 4 * Layout<D>::kTiles; ++i) {
    partial[2 * kQueries + i * 32 * kWarps + thread] = chunk.o[i / 4][i % 4];
  }
}
template <int D>
__device__ __forceinline__ Outputs<D> LoadPartial(const float* partial) {
  const int thread = static_cast<int>(threadIdx.x);
  Outputs<D> chunk;
  chunk.state.m = __ldcg(partial + thread % 32 / 4);
  chunk.state.l = __ldcg(partial + kQueries + thread % 32 / 4);
#pragma unroll
  for (int i = 0; i < 4 * Layout<D>::kTiles; ++i) {
    chunk.o[i / 4][i % 4] = __ldcg(partial + 2 * kQueries + i * 32 * kWarps + thread);
  }
  return chunk;
}

template <int D>
__device__ __forceinline__ void FoldPartials(const float* partials, int num_chunks,
                                             float scale_log2, Outputs<D>* total) {
  *total = {};
#pragma unroll 4
  for (int c = 0; c < num_chunks; ++c, partials += AttentionPartialFloats(D)) {
    total->FoldIn(LoadPartial<D>(partials), scale_log2);
  }
}

// Whether this thread block is the last of `blocks` to come here: then all its threads see what the
// others wrote before they came. The barrier orders a block's writes before its first thread's
// release, which is cumulative; the counter's additions are one chain of read-modify-writes, so the
// last one's acquire synchronizes with every release before it; the second barrier passes that on.
// One fence a block in place of one a thread.
__device__ __forceinline__ bool IsLast(int* finished, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = AddAcquireRelease(finished, 1) == blocks - 1;
    if (last) *finished = 0;  // for the next launch
  }
  __syncthreads();
  return last;
}

// grid: (rows * key-value heads, chunks or 1).
template <int D, KvFormat kFormat, bool kWhole>
__global__ void __launch_bounds__(32 * kWarps) AttentionOfRow(const __grid_constant__ RowParams p) {
  using L = Stages<D, kFormat, kWhole>;
  extern __shared__ __align__(128) char stages[];
  __shared__ __align__(16) Scores scores[2];  // read in pairs
  __shared__ uint64_t full[L::kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int item = static_cast<int>(blockIdx.x), head = item % p.a.num_kv_heads;
  if (threadIdx.x == 0) {
    for (int s = 0; s < L::kStages; ++s) BarrierInit(&full[s], kWarps);
    BarrierInitFence();
  }
  __syncthreads();
  LetSuccessorStart();

  // With `settled`, what is read before the second wait is older than the pass: its input and its
  // settled keys and values. A block of this grid may run while kernels far back in the stream do
  // (each lets its successor start before it has waited), but no further back than the pass's first
  // kernel: that one follows something other than a kernel, and so started when all before it was
  // done and visible. Past L1 (__ldcg, bulk copies), whose lines may be older. In blocks of this
  // pass's own positions even settled ones come behind the wait.
  const AttentionRows& rows = p.a.rows;
  if (rows.settled == nullptr) WaitForPredecessor();
  int row = item / p.a.num_kv_heads;
  if (p.lone_rows != nullptr) row = __ldcg(p.lone_rows + row);
  const int position = __ldcg(rows.positions + row);
  const int sequence = __ldcg(rows.sequence_of + row);
  const int settled = rows.settled == nullptr ? 0 : __ldcg(rows.settled + row);
  const bool split = p.partials != nullptr;
  const int first_chunk = split ? static_cast<int>(blockIdx.y) : 0;
  if (position < first_chunk * static_cast<int>(kChunkTokens)) return WaitForPredecessor();
  const int last_block = position / static_cast<int>(kBlockTokens);
  const int first_block = first_chunk * kChunkBlocks;
  const int end_block = split ? min(last_block + 1, first_block + kChunkBlocks) : last_block + 1;
  const int num_steps = (end_block - first_block + kStepBlocks - 1) / kStepBlocks;
  // This warp's blocks: first_block + warp + 4 n, as far as there are any.
  const int mine = (end_block - first_block - warp + kStepBlocks - 1) / kStepBlocks;
  const int32_t* table = rows.block_tables + sequence * rows.table_stride + first_block + warp;

  PieceCopies<L> copies{p.a, head, warp, lane, mine, table, stages, full};
  const int settled_blocks = settled / static_cast<int>(kBlockTokens) - first_block - warp;
  int fetched = 0;
  for (; fetched < L::kStages && fetched < num_steps; ++fetched) {
    if (fetched * kStepBlocks >= settled_blocks) break;
    copies.Fetch(fetched, fetched);
  }
  WaitForPredecessor();
  for (; fetched < L::kStages && fetched < num_steps; ++fetched) copies.Fetch(fetched, fetched);

  uint32_t q[D / 16][2];
  LoadQueries<D>(p.a, row, head, q);

  Outputs<D> total, chunk;
  int stage = 0, before = 0;
  uint32_t phase = 0;
  for (int n = 0; n < num_steps; ++n) {
    BarrierWait(&full[stage], phase);
    const char* keys = stages + stage * L::kStageBytes;
    const char* values = keys + kStepBlocks * L::kPieceBytes;
    if constexpr (L::kFloat8) {
      constexpr int kUnpacked = kStepBlocks * Layout<D>::kPieceBytes;  // of a step
      char* unpacked_keys = stages + L::kStages * L::kStageBytes;
      char* unpacked_values = unpacked_keys + (1 + n % 2) * kUnpacked;
      if (n < mine) UnpackOwn<D>(keys, values, unpacked_keys, unpacked_values);
      keys = unpacked_keys;
      values = unpacked_values;
    }
    if (n < mine) ScoreBlock<D>(keys + warp * Layout<D>::kPieceBytes, q, warp, scores[n % 2]);
    __syncthreads();
    if (n > 0 && n - 1 + L::kStages < num_steps) copies.Fetch(n - 1 + L::kStages, before);
    const int block = first_block + n * kStepBlocks;
    AddStep<D>(scores[n % 2], values, end_block - block,
               position + 1 - block * static_cast<int>(kBlockTokens), p.a.scale_log2, &chunk);
    if (n % kChunkSteps == kChunkSteps - 1 || n == num_steps - 1) {
      SumLanes(&chunk.state);
      total.FoldIn(chunk, p.a.scale_log2);
      if (n < num_steps - 1) chunk = {};
    }
    before = stage;
    if (++stage == L::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

  const int all_chunks = last_block / kChunkBlocks + 1;
  if (!split || all_chunks == 1) return StoreOut<D>(p.a, row, head, total);
  float* partials =
      p.partials + static_cast<int64_t>(item) * p.num_chunks * AttentionPartialFloats(D);
  StorePartial<D>(chunk, partials + first_chunk * AttentionPartialFloats(D));
  // Whoever writes the last of a row's chunks folds all of them, in order.
  if (!IsLast(&p.finished[item], all_chunks)) return;
  FoldPartials<D>(partials, all_chunks, p.a.scale_log2, &total);
  StoreOut<D>(p.a, row, head, total);
}

template <int D, KvFormat kFormat, bool kWhole>
void Run(const RowParams& params, int64_t rows, const AttentionPlan& plan, cudaStream_t stream) {
  constexpr int kSharedBytes = Stages<D, kFormat, kWhole>::kSharedBytes;
  static const bool allowed = [] {
    AllowSharedBytes(AttentionOfRow<D, kFormat, kWhole>, kSharedBytes);
    return true;
  }();
  (void)allowed;
  const auto items = static_cast<unsigned>(rows * params.a.num_kv_heads);
  Launch(AttentionOfRow<D, kFormat, kWhole>, dim3(items, static_cast<unsigned>(plan.num_chunks)),
         dim3(32 * kWarps), kSharedBytes, stream, params);
}
template <int D, KvFormat kFormat>
void Run(const RowParams& params, int64_t rows, const AttentionPlan& plan, cudaStream_t stream) {
  return plan.whole_chunks ? Run<D, kFormat, true>(params, rows, plan, stream)
                           : Run<D, kFormat, false>(params, rows, plan, stream);
}

}  // namespace

void AttentionOfRows(const AttentionParams& params, const int32_t* lone_rows, int64_t num_rows,
                     int64_t head_dim, KvFormat format, const AttentionPlan& plan, void* workspace,
                     cudaStream_t stream) {
  RowParams p = {};
  p.a = params;
  p.lone_rows = lone_rows;
  p.finished = static_cast<int*>(workspace);
  p.partials = plan.split ? static_cast<float*>(workspace) + kAttentionCounters : nullptr;
  p.num_chunks = static_cast<int>(plan.num_chunks);
  const bool wide = head_dim == 128;
  if (format == KvFormat::kFloat8) {
    return wide ? Run<128, KvFormat::kFloat8>(p, num_rows, plan, stream)
                : Run<64, KvFormat::kFloat8>(p, num_rows, plan, stream);
  }
  return wide ? Run<128, KvFormat::kModel>(p, num_rows, plan, stream)
              : Run<64, KvFormat::kModel>(p, num_rows, plan, stream);
}

}  // namespace orrery::kernels::cuda

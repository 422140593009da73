// Many rows of one sequence: a thread block takes a tile of them, with all heads of one key-value
// head's group, up to 128 queries, and brings keys and values once for all. A warp holds 16 queries
// with their outputs in registers, as rows of the product; the order of every sum is that of a row
// alone (attention_order.cuh), so its bits are the same. Hopper has attention_warpgroups.cu
// instead.
#include "kernels/attention/attention_kernels.cuh"
#include "kernels/attention/attention_order.cuh"
#include "kernels/attention/float8_kv.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ring_position.cuh"

namespace orrery::kernels::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 2 * kStepBlocks;  // each brings the keys, or the values, of a block
constexpr int kWarpQueries = 16;
static_assert(kWarps * kWarpQueries == kTileQueries);

template <int D>
struct Layout {
  static constexpr int kPieceBytes = kBlockTokens * D * 2;  // keys (or values) of a block and head
  static constexpr int kStageBytes = 2 * kStepBlocks * kPieceBytes;
  static constexpr int kStages = D == 128 ? 3 : 4;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// In float8 a warp's pieces land beside the stages first, two deep, and the warp unpacks each into
// its stage.
template <int D>
struct PackedPieces {
  static constexpr int kDepth = 2;
  static constexpr int kPieceBytes = kBlockTokens * (D + 1);
  static constexpr int kSharedBytes = kDepth * kWarps * kPieceBytes;
};

template <int D, KvFormat kFormat>
constexpr int SharedBytes() {
  return Layout<D>::kSharedBytes +
         (kFormat == KvFormat::kFloat8 ? PackedPieces<D>::kSharedBytes : 0);
}

// Lane 4 g + t holds queries g (values 0, 1) and g + 8 (2, 3) of its warp.
template <int D>
struct Outputs {
  SoftmaxState state[2];
  float o[D / 8][4] = {};

  __device__ __forceinline__ void FoldIn(Outputs* chunk, float scale_log2) {
    FoldFactors f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      SumLanes(&chunk->state[h]);
      f[h] = Fold(chunk->state[h], scale_log2, &state[h]);
    }
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][c] = Folded(o[i][c], chunk->o[i][c], f[c / 2]);
    }
  }
};

// s[j] = scores of 16 queries against keys 8 j .. 8 j + 7 of a step.
template <int D>
__device__ __forceinline__ void ScoreStep(const char* keys, const uint32_t (&q)[D / 16][4],
                                          float (&s)[8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    const int at = PieceOffset(lane / 16 * 8 + lane % 8, kk, lane / 8 % 2);
#pragma unroll
    for (int b = 0; b < kStepBlocks; ++b) {
      uint32_t k[4];
      LoadMatrix4(k, keys + b * Layout<D>::kPieceBytes + at);
      Mma16816(s[2 * b], q[kk], k[0], k[1]);
      Mma16816(s[2 * b + 1], q[kk], k[2], k[3]);
    }
  }
}

// The softmax of both of this lane's queries, which see limit[h] keys of the step; p[b] holds the
// probabilities of block b as the left operand.
__device__ __forceinline__ void SoftmaxOfStep(const float (&s)[8][4], const int (&limit)[2],
                                              float scale_log2, SoftmaxState (&state)[2],
                                              float (&factor)[2], uint32_t (&p)[kStepBlocks][4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float mine[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) mine[i] = s[i / 2][2 * h + i % 2];
    if (limit[h] < kStepTokens) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (StepKey(i, t) >= limit[h]) mine[i] = -INFINITY;
      }
    }
    factor[h] = SoftmaxStep(mine, scale_log2, &state[h]);
#pragma unroll
    for (int b = 0; b < kStepBlocks; ++b) {
      p[b][h] = PackBf16(mine[4 * b], mine[4 * b + 1]);
      p[b][h + 2] = PackBf16(mine[4 * b + 2], mine[4 * b + 3]);
    }
  }
}

template <int D>
__device__ __forceinline__ void Scale(const float (&factor)[2], float (&o)[D / 8][4]) {
#pragma unroll
  for (int i = 0; i < D / 8; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) o[i][c] *= factor[c / 2];
  }
}
template <int D>
__device__ __forceinline__ void AddValues(const char* values, int num_blocks,
                                          const uint32_t (&p)[kStepBlocks][4],
                                          float (&o)[D / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int b = 0; b < kStepBlocks; ++b) {
    if (b >= num_blocks) break;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      uint32_t v[4];
      LoadMatrix4Transposed(v, values + b * Layout<D>::kPieceBytes +
                                   PieceOffset(lane / 8 % 2 * 8 + lane % 8, i, lane / 16));
      Mma16816(o[2 * i], p[b], v[0], v[1]);
      Mma16816(o[2 * i + 1], p[b], v[2], v[3]);
    }
  }
}

// Query h of this lane's two, from the lane's first column on, into the left operand.
template <int D>
__device__ __forceinline__ void LoadQuery(const bf16* query, int h, uint32_t (&q)[D / 16][4]) {
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    q[kk][h] = *reinterpret_cast<const uint32_t*>(query + kk * 16);
    q[kk][h + 2] = *reinterpret_cast<const uint32_t*>(query + kk * 16 + 8);
  }
}

// A warp's copies: of every step the keys of one block, or its values.
template <int D, KvFormat kFormat>
struct PieceCopies {
  using L = Layout<D>;
  using Packed = PackedPieces<D>;
  static constexpr bool kFloat8 = kFormat == KvFormat::kFloat8;
  const AttentionParams& p;
  const int head;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int num_steps, mine;  // mine: blocks that this warp brings
  const int32_t* table;
  const char* cache;
  int ids = 0;  // lane i holds the id of block i of the present 32
  char* own_stages;
  char* own_packed;  // of float8, as is `landed`
  uint64_t* full;
  uint64_t* landed;

  __device__ __forceinline__ PieceCopies(const AttentionParams& params, const AttentionTile& tile,
                                         int kv_head, int last_block, char* stages, uint64_t* fulls,
                                         uint64_t* own_landed)
      : p(params), head(kv_head), full(fulls), landed(own_landed) {
    const int block = warp % kStepBlocks;  // of a step
    num_steps = last_block / kStepBlocks + 1;
    mine = (last_block - block + kStepBlocks) / kStepBlocks;
    table = p.rows.block_tables + p.rows.sequence_of[tile.first_row] * p.rows.table_stride + block;
    cache = warp < kStepBlocks ? p.k : p.v;
    own_stages = stages + warp * L::kPieceBytes;
    own_packed = stages + L::kSharedBytes + warp * Packed::kDepth * Packed::kPieceBytes;
  }

  __device__ __forceinline__ int64_t BlockOf(int n) {  // for n in ascending order
    if (n % 32 == 0) ids = n + lane < mine ? table[(n + lane) * kStepBlocks] : 0;
    return int64_t{__shfl_sync(0xffffffffu, ids, n % 32)};
  }
  // Float8: starts the copy of block n beside the stages.
  __device__ __forceinline__ void Ask(int n) {
    const int64_t id = BlockOf(n);
    if (lane > 0 || n >= mine) return;
    uint64_t* barrier = &landed[n % Packed::kDepth];
    BarrierArriveExpect(barrier, Packed::kPieceBytes);
    BulkCopy(own_packed + n % Packed::kDepth * Packed::kPieceBytes,
             cache + (id * p.num_kv_heads + head) * Packed::kPieceBytes, Packed::kPieceBytes,
             barrier);
  }
  // Brings block n, of step n, into a stage that is free.
  __device__ __forceinline__ void Fetch(int n, int stage) {
    if constexpr (kFloat8) {
      if (n < mine) {
        BarrierWait(&landed[n % Packed::kDepth], n / Packed::kDepth % 2);
        UnpackPiece<D>(own_packed + n % Packed::kDepth * Packed::kPieceBytes,
                       own_stages + stage * L::kStageBytes, kBlockTokens * 128);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(&full[stage]);
      if (n + Packed::kDepth < num_steps) Ask(n + Packed::kDepth);
    } else {
      const int64_t id = BlockOf(n);
      if (lane > 0) return;
      if (n >= mine) return BarrierArrive(&full[stage]);
      BarrierArriveExpect(&full[stage], L::kPieceBytes);
      BulkCopy(own_stages + stage * L::kStageBytes,
               cache + (id * p.num_kv_heads + head) * L::kPieceBytes, L::kPieceBytes, &full[stage]);
    }
  }
};

// grid: tiles * key-value heads.
template <int D, KvFormat kFormat>
__global__ void __launch_bounds__(32 * kWarps, 1)
    AttentionOfTile(const __grid_constant__ AttentionParams p) {
  using L = Layout<D>;
  using Packed = PackedPieces<D>;
  constexpr bool kFloat8 = kFormat == KvFormat::kFloat8;
  extern __shared__ __align__(128) char stages[];
  __shared__ uint64_t full[L::kStages], empty[L::kStages];
  __shared__ uint64_t landed[kWarps][Packed::kDepth];  // of float8
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < L::kStages; ++s) {
      BarrierInit(&full[s], kWarps);
      BarrierInit(&empty[s], kWarps);
    }
    for (int i = 0; kFloat8 && i < kWarps * Packed::kDepth; ++i) BarrierInit(landed[0] + i, 1);
    BarrierInitFence();
  }
  __syncthreads();
  LetSuccessorStart();
  WaitForPredecessor();

  // Later tiles of a sequence see more keys: they go first.
  const int item = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = item % p.num_kv_heads;
  const AttentionTile tile = p.rows.tiles[item / p.num_kv_heads];
  const int first_position = p.rows.positions[tile.first_row];
  const int last_block = (first_position + tile.num_rows - 1) / static_cast<int>(kBlockTokens);
  const int num_steps = last_block / kStepBlocks + 1;
  PieceCopies<D, kFormat> copies(p, tile, head, last_block, stages, full, landed[warp]);
  if constexpr (kFloat8) {
    for (int n = 0; n < Packed::kDepth && n < num_steps; ++n) copies.Ask(n);
  }
  for (int n = 0; n < L::kStages - 1 && n < num_steps; ++n) copies.Fetch(n, n);

  // This lane's queries, and the rows they belong to. Those past the tile's last are computed as
  // ones of its last row and not stored.
  int row[2], query_head[2];
  bool real[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = warp * kWarpQueries + 8 * h + lane / 4;
    real[h] = query / p.group < tile.num_rows;
    row[h] = min(query / p.group, tile.num_rows - 1);
    query_head[h] = head * p.group + query % p.group;
  }
  const bool busy = warp * kWarpQueries / p.group < tile.num_rows;
  const int last_row = min((warp * kWarpQueries + kWarpQueries - 1) / p.group, tile.num_rows - 1);
  const int my_steps = busy ? (first_position + last_row) / kStepTokens + 1 : 0;

  uint32_t q[D / 16][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    LoadQuery<D>(
        p.queries + (tile.first_row + row[h]) * p.query_stride + query_head[h] * D + 2 * (lane % 4),
        h, q);
  }

  Outputs<D> total, chunk;
  RingPosition ring;
  for (int n = 0; n < num_steps; ++n) {
    // The stage of the step before is filled again, once every warp is done with it.
    const int next = n + L::kStages - 1;
    if (next < num_steps) {
      const int to = ring.stage == 0 ? L::kStages - 1 : ring.stage - 1;
      if (n > 0) BarrierWait(&empty[to], ring.stage == 0 ? ring.phase ^ 1 : ring.phase);
      copies.Fetch(next, to);
    }
    if (n < my_steps) {
      BarrierWait(&full[ring.stage], ring.phase);
      const char* keys = stages + ring.stage * L::kStageBytes;
      float s[8][4], factor[2];
      uint32_t probabilities[kStepBlocks][4];
      ScoreStep<D>(keys, q, s);
      const int seen = first_position + 1 - n * kStepTokens;
      SoftmaxOfStep(s, {seen + row[0], seen + row[1]}, p.scale_log2, chunk.state, factor,
                    probabilities);
      Scale<D>(factor, chunk.o);
      AddValues<D>(keys + kStepBlocks * L::kPieceBytes, last_block + 1 - n * kStepBlocks,
                   probabilities, chunk.o);
      if (n % kChunkSteps == kChunkSteps - 1 || n == my_steps - 1) {
        total.FoldIn(&chunk, p.scale_log2);
        chunk = {};
      }
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(&empty[ring.stage]);
    ring.Advance(L::kStages);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!real[h]) continue;
    const float scale = __fdiv_rn(1.0f, total.state[h].l);
    bf16* out =
        p.out + (tile.first_row + row[h]) * p.out_stride + query_head[h] * D + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      *reinterpret_cast<uint32_t*>(out + 8 * i) =
          PackBf16(total.o[i][2 * h] * scale, total.o[i][2 * h + 1] * scale);
    }
  }
}

template <int D, KvFormat kFormat>
void Run(const AttentionParams& params, cudaStream_t stream) {
  constexpr int kSharedBytes = SharedBytes<D, kFormat>();
  static const bool allowed = [] {
    AllowSharedBytes(AttentionOfTile<D, kFormat>, kSharedBytes);
    return true;
  }();
  (void)allowed;
  Launch(AttentionOfTile<D, kFormat>,
         dim3(static_cast<unsigned>(params.rows.num_tiles * params.num_kv_heads)),
         dim3(32 * kWarps), kSharedBytes, stream, params);
}

}  // namespace

void AttentionOfTiles(const AttentionParams& params, int64_t head_dim, KvFormat format,
                      cudaStream_t stream) {
  if (format == KvFormat::kFloat8) {
    return head_dim == 128 ? Run<128, KvFormat::kFloat8>(params, stream)
                           : Run<64, KvFormat::kFloat8>(params, stream);
  }
  return head_dim == 128 ? Run<128, KvFormat::kModel>(params, stream)
                         : Run<64, KvFormat::kModel>(params, stream);
}

}  // namespace orrery::kernels::cuda

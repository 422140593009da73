// Many rows of one sequence on Hopper: the tiles of attention_tiles.cu, with the same order of
// every sum and so the same bits, by warpgroup products.
//
// A thread block stays and takes every gridDim-th item, a (tile, key-value head). Its four producer
// warps bring the tile's queries, two items deep, and then keys and values a step at a time through
// a ring of stages, one block of 16 positions a warp; they run ahead of the products, into the next
// item. Each of two consumer warpgroups holds 64 queries' outputs in registers and gives its
// products to the tensor cores in turn with the other (scores of the next step, values of this
// one): while they compute for one, the other has its softmax to do.
#include <algorithm>

#include "kernels/attention/attention_warpgroups_producer.cuh"
#include "kernels/cuda/launch.cuh"

namespace orrery::kernels::cuda {
namespace warpgroups {
namespace {

// Lane 4 g + t of a warp holds queries g (h = 0) and g + 8 (h = 1) of the warp's 16.
template <int D, KvFormat kFormat>
struct Consumer : Warp<D, kFormat> {
  using Base = Warp<D, kFormat>;
  using L = typename Base::L;
  using Base::p, Base::shared, Base::control, Base::lane, Base::QueriesAt;
  const int warpgroup = Uniform(static_cast<int>(threadIdx.x) / 128);
  const int warp_query = static_cast<int>(threadIdx.x) / 32 * 16;  // of the warp
  RingPosition ring;

  float scores[32];
  uint32_t probabilities[kStepBlocks][4];  // as the left operand, a block each
  SoftmaxState total_state[2], state[2];   // of all chunks before, and of the present one
  int seen[2];                             // keys that the queries see
  float total[D / 2], sums[D / 2];         // outputs, likewise

  __device__ __forceinline__ const char* StageAt(int stage) const {
    return shared + stage * L::kStageBytes;
  }
  __device__ __forceinline__ void ScoreKeys(const char* queries, const char* keys) {
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      WgmmaShared<false, false>(scores, RowOperand(queries, kTileQueries, 64 * warpgroup, k),
                                RowOperand(keys, kStepTokens, 0, k), k > 0);
    }
  }
  __device__ __forceinline__ void AddBlock(const char* stage_bytes, int block) {
    WgmmaRegisters(sums, probabilities[block],
                   ColumnOperand(stage_bytes + L::kMatrixBytes, kStepTokens, 16 * block, 0));
  }
  // The values of a step, as one group of products; num_blocks at least 1. Blocks past an item's
  // last hold what was there before, and are left out. A whole step is a branch of its own, so that
  // nothing in it stands behind a condition. A fence after every branch: the compiler would put it
  // there itself, and tell of each.
  __device__ __forceinline__ void AddValues(const char* stage_bytes, int num_blocks) {
    if (num_blocks >= kStepBlocks) {
      WgmmaFence();
#pragma unroll
      for (int b = 0; b < kStepBlocks; ++b) AddBlock(stage_bytes, b);
      WgmmaCommit();
    } else {
#pragma unroll
      for (int b = 0; b < kStepBlocks - 1; ++b) {
        if (b >= num_blocks) continue;
        WgmmaFence();
        AddBlock(stage_bytes, b);
      }
      WgmmaFence();
      WgmmaCommit();
    }
  }

  // The softmax of a step of which the queries see limit[h] keys. factor: of the sums before.
  __device__ __forceinline__ void Softmax(const int (&limit)[2], float (&factor)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float mine[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) mine[i] = scores[i / 2 * 4 + 2 * h + i % 2];
      if (limit[h] < kStepTokens) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          if (StepKey(i, lane % 4) >= limit[h]) mine[i] = -INFINITY;
        }
      }
      factor[h] = SoftmaxStep(mine, p.scale_log2, &state[h]);
#pragma unroll
      for (int i = 0; i < 16; ++i) scores[i / 2 * 4 + 2 * h + i % 2] = mine[i];
    }
  }
  __device__ __forceinline__ void Pack() {
#pragma unroll
    for (int b = 0; b < kStepBlocks; ++b) PackOperand(scores, b, probabilities[b]);
  }
  __device__ __forceinline__ void Scale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sums[i] *= factor[i / 2 % 2];
  }
  // The chunk whose state is `ended` goes behind those before it.
  __device__ __forceinline__ void FoldChunk(SoftmaxState (&ended)[2]) {
    FoldFactors f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      SumLanes(&ended[h]);
      f[h] = Fold(ended[h], p.scale_log2, &total_state[h]);
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
      total[i] = Folded(total[i], sums[i], f[i / 2 % 2]);
      sums[i] = 0;
    }
  }

  __device__ __forceinline__ void Release(int at) {
    __syncwarp();
    if (lane == 0) BarrierArrive(&control->empty[at]);
  }

  // The two warpgroups give their products to the tensor cores by turns, one a step.
  static constexpr int kTurn = 1;  // the first of two named barriers
  __device__ __forceinline__ void BeginTurn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(kTurn + warpgroup), "n"(128 * kConsumers) : "memory");
  }
  __device__ __forceinline__ void EndTurn() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(kTurn + 1 - warpgroup), "n"(128 * kConsumers)
                 : "memory");
  }

  // Through the warp's rows of the queries, which nobody reads any more.
  __device__ __forceinline__ void Store(const Item& item, char* queries) const {
    const float scale[2] = {__fdiv_rn(1.0f, total_state[0].l), __fdiv_rn(1.0f, total_state[1].l)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        char* to = queries + PanelOffset(kTileQueries, warp_query + 8 * h + lane / 4, j);
        *reinterpret_cast<uint32_t*>(to + 4 * (lane % 4)) =
            PackBf16(total[4 * j + 2 * h] * scale[h], total[4 * j + 2 * h + 1] * scale[h]);
      }
    }
    __syncwarp();
    constexpr int kChunks = D / 8, kRows = 32 / kChunks;
    const int chunk = lane % kChunks;
    int query = warp_query + lane / kChunks;
    QueryWalk<kRows> walk(query, p.group);
    bf16* const out = p.out + item.first_row * p.out_stride + item.head * p.group * D + chunk * 8;
#pragma unroll
    for (int i = 0; i < 16 / kRows; ++i, query += kRows, walk.Next()) {
      if (walk.row >= item.num_rows) continue;
      *reinterpret_cast<uint4*>(out + walk.row * p.out_stride + walk.head * D) =
          *reinterpret_cast<const uint4*>(queries + PanelOffset(kTileQueries, query, chunk));
    }
    __syncwarp();
  }

  // The item whose queries are in `buffer`, once they are there.
  __device__ __forceinline__ Item Begin(int buffer, uint32_t phase) {
    BarrierWait(&control->queries_full[buffer], phase);
    FenceForTensorCores();
    const Item item = control->items[buffer];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      seen[h] = item.first_position + 1 + item.RowOf(warp_query + 8 * h + lane / 4, p.group);
    }
    return {Uniform(item.head), Uniform(item.first_position), Uniform(item.first_row),
            Uniform(item.num_rows)};
  }

  // Step 0 of a block's first item: nothing yet to overlap it with.
  __device__ __forceinline__ void TakeFirstStep(const char* queries) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) total[i] = sums[i] = 0;
    BarrierWait(&control->full[ring.stage], ring.phase);
    BeginTurn();
    WgmmaFence();
    ScoreKeys(queries, StageAt(ring.stage));
    WgmmaCommit();
    EndTurn();
    WgmmaWait<0>();
    FenceRegisters(scores);
    Softmax(seen, factor);
    Pack();
  }

  // A step of which a query sees no key leaves its state and its sums as they are, exactly; so both
  // warpgroups take all steps of all items. The values of a step are added while the next one is
  // scored, be it of this item or of the next: an item's end costs the tensor cores nothing.
  __device__ __forceinline__ void Run() {
    RingPosition query_ring;
    int items_left = (NumItems(p) - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x);
    if (warpgroup == 1) EndTurn();  // the other begins
    Item item = Begin(query_ring.stage, query_ring.phase);
    TakeFirstStep(QueriesAt(query_ring.stage));
    // Step n of `item` has its probabilities; what comes next is `n + 1`, or step 0 of `next`.
    for (int n = 0;;) {
      const bool item_ends = n == item.num_steps() - 1;
      const bool chunk_ends = item_ends || n % kChunkSteps == kChunkSteps - 1;
      const int num_blocks = item.last_block() + 1 - n * kStepBlocks;
      const bool last = item_ends && items_left == 0;
      const int here = ring.stage, queries_here = query_ring.stage;
      Item next = item;
      if (item_ends && !last) {
        query_ring.Advance(kQueryBuffers);
        next = Begin(query_ring.stage, query_ring.phase);
        --items_left;
      }
      n = item_ends ? 0 : n + 1;
      ring.Advance(L::kStages);
      if (!last) BarrierWait(&control->full[ring.stage], ring.phase);
      BeginTurn();
      FenceRegisters(sums);
      WgmmaFence();
      ScoreKeys(QueriesAt(query_ring.stage), StageAt(ring.stage));  // of nothing, at the last
      WgmmaCommit();
      AddValues(StageAt(here), num_blocks);
      EndTurn();
      WgmmaWait<1>();
      FenceRegisters(scores);
      SoftmaxState ended[2] = {state[0], state[1]};
      float factor[2];
      if (chunk_ends) state[0] = state[1] = {};
      Softmax({seen[0] - n * kStepTokens, seen[1] - n * kStepTokens}, factor);
      FenceRegisters(scores);  // all of the softmax stays before the wait
      WgmmaWait<0>();
      FenceRegisters(sums);
      Release(here);
      if (!chunk_ends) {
        Scale(factor);
      } else {
        FoldChunk(ended);
      }
      if (item_ends) {
        Store(item, QueriesAt(queries_here));
        if (lane == 0) BarrierArrive(&control->queries_empty[queries_here]);
        if (last) break;
        total_state[0] = total_state[1] = {};
#pragma unroll
        for (int i = 0; i < D / 2; ++i) total[i] = 0;
        item = next;
      }
      Pack();
    }
  }
};

template <int D, KvFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionOfTiles(const __grid_constant__ AttentionParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere plans never choose it: DeviceLimits::wgmma
  extern __shared__ char unaligned[];
  __shared__ Control<D, kFormat> control;
  char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  if (threadIdx.x == 0) control.Init();
  __syncthreads();
  LetSuccessorStart();
  WaitForPredecessor();
  if (threadIdx.x >= 32 * kConsumerWarps) {
    KeepRegisters<Layout<D, kFormat>::kProducerRegisters>();
    Producer<D, kFormat>{{p, shared, &control}}.Run();
  } else {
    TakeRegisters<Layout<D, kFormat>::kConsumerRegisters>();
    Consumer<D, kFormat>{{p, shared, &control}}.Run();
  }
#endif
}

template <int D, KvFormat kFormat>
void Run(const AttentionParams& params, int64_t blocks, cudaStream_t stream) {
  constexpr int kSharedBytes = Layout<D, kFormat>::kSharedBytes;
  static const bool allowed = [] {
    AllowSharedBytes(AttentionOfTiles<D, kFormat>, kSharedBytes);
    return true;
  }();
  (void)allowed;
  const int64_t items = params.rows.num_tiles * params.num_kv_heads;
  Launch(AttentionOfTiles<D, kFormat>, dim3(static_cast<unsigned>(std::min(items, blocks))),
         dim3(kThreads), kSharedBytes, stream, params);
}

}  // namespace
}  // namespace warpgroups

void AttentionByWarpgroups(const AttentionParams& params, int64_t head_dim, KvFormat format,
                           int64_t blocks, cudaStream_t stream) {
  if (format == KvFormat::kFloat8) {
    return head_dim == 128 ? warpgroups::Run<128, KvFormat::kFloat8>(params, blocks, stream)
                           : warpgroups::Run<64, KvFormat::kFloat8>(params, blocks, stream);
  }
  return head_dim == 128 ? warpgroups::Run<128, KvFormat::kModel>(params, blocks, stream)
                         : warpgroups::Run<64, KvFormat::kModel>(params, blocks, stream);
}

}  // namespace orrery::kernels::cuda

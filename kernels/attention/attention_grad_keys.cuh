// The kernels of attention_grad_warpgroups.cu that give dk and dv. A thread block takes a key tile
// of one key-value head and runs over the queries that see it; where the plan gives keys to several
// blocks, a second kernel adds their sums.
#pragma once

#include "kernels/attention/attention_grad_products.cuh"
#include "kernels/cuda/launch.cuh"

namespace orrery::kernels::cuda::grad_warpgroups {

// The packed queries that see a key tile, kStep at a time, run by run.
struct QuerySteps {
  const QueryRun* run;
  int group, runs_left, packed, end, key_end;

  __device__ QuerySteps(const KeyTile& tile, const QueryRun* runs, int group_size)
      : run(runs + tile.first_run), group(group_size), runs_left(tile.num_runs) {
    Enter();
  }
  __device__ void Enter() {
    packed = run->first_row * group;
    end = packed + run->num_rows * group;
    key_end = run->key_end;
  }
  __device__ bool done() const { return runs_left == 0; }
  __device__ void Advance() {
    packed += kStep;
    if (packed < end || --runs_left == 0) return;
    ++run;
    Enter();
  }
};

// A thread's share of two rows of a [64 kGroups, D] matrix.
template <int D>
__device__ __forceinline__ void StorePartial(const float (&sums)[D / 2], float* matrix, int row,
                                             int t) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    float* to = matrix + row * D + 8 * j + 2 * t;
    *reinterpret_cast<float2*>(to) = make_float2(sums[4 * j], sums[4 * j + 1]);
    *reinterpret_cast<float2*>(to + 8 * D) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
  }
}

// Log-sums of kStep packed queries from `first` on, then their deltas. Queries past the end:
// probability exp2(-infinity), delta 0.
__device__ __forceinline__ void CopyStats(const Params& p, int kv_head, int first, int end,
                                          float* stats) {
  const int thread = threadIdx.x, packed = first + thread % kStep;
  if (thread < 2 * kStep) {
    float* stat = stats + thread;
    const float* from = (thread < kStep ? p.log_sums : p.deltas) + kv_head * p.stride + packed;
    if (packed < end) {
      AsyncCopy4(stat, from);
    } else {
      *stat = thread < kStep ? INFINITY : 0;
    }
  }
}

// Scores of a step become probabilities. Of lane 4 g + t, as the products leave them: keys g and
// g + 8, queries 8 j + 2 t and the next.
__device__ __forceinline__ void Probabilities(const float* log_sums, float scale_log2, int t,
                                              float (&s)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 log_sum = *reinterpret_cast<const float2*>(log_sums + 8 * j + 2 * t);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      float& x = s[4 * j + v];
      x = Exp2(x * scale_log2 - (v % 2 == 0 ? log_sum.x : log_sum.y));
    }
  }
}
// dp: gradients of the probabilities p, to gradients of the scores.
__device__ __forceinline__ void ScoreGradients(const float (&p)[32], const float* deltas, int t,
                                               float (&dp)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * j + 2 * t);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      dp[4 * j + v] = p[4 * j + v] * (dp[4 * j + v] - (v % 2 == 0 ? delta.x : delta.y));
    }
  }
}

// Probabilities of keys past the last that a query of the step sees, last_key(query), become 0.
template <typename F>
__device__ __forceinline__ void ClearUnseen(int own_key, int t, float (&s)[32], const F& last_key) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (own_key + v / 2 * 8 > last_key(8 * j + 2 * t + v % 2)) s[4 * j + v] = 0;
    }
  }
}

// The warp's rows of a tile that no other block shares, through the memory of its keys and values.
template <int D>
__device__ __forceinline__ void StoreKeys(const Params& p, const KeyTile& tile, int kv_head,
                                          int first, const float (&dk)[D / 2],
                                          const float (&dv)[D / 2], char* keys, char* values) {
  const int tile_end = tile.first_row + tile.num_rows;
  const auto to = [&](int64_t column) {
    return [&p, &tile, tile_end, column](int index) {
      const int at = tile.first_row + index;
      return at < tile_end ? p.dqkv.Row(at) + column : nullptr;
    };
  };
  StoreRows<D>(dk, p.scale, p.scale, keys, first, to(p.KeyColumn(kv_head)));
  StoreRows<D>(dv, 1, 1, values, first, to(p.ValueColumn(kv_head)));
}

template <int D>
__global__ void __launch_bounds__(GradShape<D>::kThreads, GradShape<D>::kKeyBlocks)
    KeyKernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = GradShape<D>;
  extern __shared__ char unaligned[];
  char* keys = Align(unaligned);
  char* values = keys + Shape::kOwnBytes;
  char* stages = values + Shape::kOwnBytes;
  float* stats = reinterpret_cast<float*>(stages + kStages * Shape::kStageBytes);
  WaitForPredecessor();
  LetSuccessorStart();

  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  const KeyTile tile = p.key_tiles[blockIdx.x / p.num_kv_heads];
  const int tile_end = tile.first_row + tile.num_rows;
  QuerySteps ahead(tile, p.runs, p.group.group), now = ahead;
  const auto fetch = [&](int stage) {
    if (!ahead.done()) {
      char* to = stages + stage * Shape::kStageBytes;
      CopyQueries<D, kStep>(p, kv_head, ahead.packed, ahead.end, to, to + Shape::kStepBytes);
      CopyStats(p, kv_head, ahead.packed, ahead.end, stats + stage * 2 * kStep);
      ahead.Advance();
    }
    CommitCopies();
  };
  CopyKeysValues<D, Shape::kOwn>(p, kv_head, tile.first_row, tile_end, keys, values);
  for (int i = 0; i < kStages - 1; ++i) fetch(i);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group_first = warp / 4 * 64, first_key = tile.first_row + group_first;
  const int own_key = tile.first_row + warp * 16 + g;  // and own_key + 8
  const float scale_log2 = p.scale * kLog2E;
  float dk[D / 2], dv[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
  for (int stage = 0; !now.done(); now.Advance(), stage = stage == kStages - 1 ? 0 : stage + 1) {
    AwaitStage();
    fetch(stage == 0 ? kStages - 1 : stage - 1);
    const bool causal = now.key_end < 0;
    const int most = causal ? p.group.RowOf(now.packed + kStep - 1) : now.key_end - 1;
    if (first_key > most || first_key >= tile_end) continue;  // nobody sees this warpgroup's keys
    const char* queries = stages + stage * Shape::kStageBytes;
    const char* douts = queries + Shape::kStepBytes;
    const float* log_sums = stats + stage * 2 * kStep;
    const float* deltas = log_sums + kStep;
    float s[32], dp[32];
    uint32_t left[4][4];
    WgmmaFence();
    Scores<D>(keys, group_first, queries, s);
    WgmmaCommit();
    Scores<D>(values, group_first, douts, dp);
    WgmmaCommit();
    WgmmaWait<1>();
    FenceRegisters(s);
    Probabilities(log_sums, scale_log2, t, s);
    const int least = causal ? p.group.RowOf(now.packed) : now.key_end - 1;
    if (min(first_key + 63, tile_end - 1) > least) {
      ClearUnseen(own_key, t, s,
                  [&](int query) { return causal ? p.group.RowOf(now.packed + query) : least; });
    }
    PackAll(s, left);
    FenceRegisters(dv);
    WgmmaFence();
    AddProduct<D>(left, douts, dv);
    WgmmaCommit();
    WgmmaWait<1>();
    FenceRegisters(dp);
    ScoreGradients(s, deltas, t, dp);
    uint32_t right[4][4];
    PackAll(dp, right);
    FenceRegisters(dk);
    WgmmaFence();
    AddProduct<D>(right, queries, dk);
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(dv);
    FenceRegisters(dk);
  }

  WaitForOwnCopies();
  if (tile.partial >= 0) {
    float* to = p.partials + static_cast<int64_t>(tile.partial * p.num_kv_heads + kv_head) *
                                 Shape::kPartialFloats;
    StorePartial<D>(dk, to, warp * 16 + g, t);
    StorePartial<D>(dv, to + Shape::kPartialFloats / 2, warp * 16 + g, t);
  } else {
    __syncthreads();  // keys and values are not read any more
    StoreKeys<D>(p, tile, kv_head, warp * 16, dk, dv, keys, values);
  }
#endif
}

// Blocks a (sum, key-value head).
inline constexpr int kSumThreads = 256, kSumBlocks = 4;

template <int D>
__global__ void __launch_bounds__(kSumThreads) KeySumKernel(const __grid_constant__ Params p) {
  WaitForPredecessor();
  LetSuccessorStart();
  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  const KeySum sum = p.sums[blockIdx.x / p.num_kv_heads];
  constexpr int kFloats = GradShape<D>::kPartialFloats;
  const float* partial =
      p.partials + static_cast<int64_t>(sum.first_partial * p.num_kv_heads + kv_head) * kFloats;
  const int first = static_cast<int>(blockIdx.y) * kSumThreads + static_cast<int>(threadIdx.x);
  for (int i = first; i < sum.num_rows * D / 4; i += kSumBlocks * kSumThreads) {
    const int row = sum.first_row + 4 * i / D, column = 4 * i % D;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* from = partial + half * (kFloats / 2) + 4 * i;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int n = 0; n < sum.num_partials; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(from + static_cast<int64_t>(n) *
                                                                     p.num_kv_heads * kFloats);
        v = make_float4(v.x + x.x, v.y + x.y, v.z + x.z, v.w + x.w);
      }
      const float factor = half == 0 ? p.scale : 1;
      bf16* to = p.dqkv.Row(row) + (half == 0 ? p.KeyColumn(kv_head) : p.ValueColumn(kv_head));
      *reinterpret_cast<uint2*>(to + column) =
          make_uint2(PackBf16(v.x * factor, v.y * factor), PackBf16(v.z * factor, v.w * factor));
    }
  }
}

}  // namespace orrery::kernels::cuda::grad_warpgroups

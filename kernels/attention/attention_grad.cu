// Hopper's warpgroup products. A warpgroup owns 64 rows of its tile (queries for dq, keys for dk
// and dv) and all sums of them in registers; what it runs over comes 64 rows at a time through a
// ring of stages, copied 16 bytes a thread. Scores and their gradients never leave registers: the
// sums of one product are, packed to bfloat16, the left operand of the next.
#include "kernels/attention/attention_grad_cuda.h"
#include "kernels/attention/attention_grad_parts.cuh"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma_operands.cuh"

namespace orrery::kernels::cuda {
namespace {

using bf16 = BFloat16;
using Params = AttentionGradParams<bf16>;

constexpr int kStep = 64;  // rows that arrive at a time
constexpr int kStages = 3;

template <int D>
struct GradShape {
  static constexpr int kGroups = D == 128 ? 2 : 1;  // warpgroups
  static constexpr int kOwn = 64 * kGroups;         // rows of the block's tile
  static constexpr int kThreads = 128 * kGroups;
  static constexpr int kQueryBlocks = D == 128 ? 1 : 3;  // an SM, by registers
  static constexpr int kKeyBlocks = D == 128 ? 1 : 2;
  static constexpr int kOwnBytes = kOwn * D * 2;
  static constexpr int kStepBytes = kStep * D * 2;
  static constexpr int kStageBytes = 2 * kStepBytes;
  static constexpr int kPartialFloats = 2 * kOwn * D;
  static constexpr int kStatBytes = 2 * kStep * 4;  // of a stage: log-sums and deltas
  static constexpr int kSharedBytes =
      2 * kOwnBytes + kStages * (kStageBytes + kStatBytes) + 1024;  // and room to align
};

__device__ __forceinline__ void AsyncCopy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// The oldest stage under way has landed, for everybody; the one before it is free.
__device__ __forceinline__ void AwaitStage() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
  FenceForTensorCores();
  __syncthreads();
}

// f(row of the matrix, chunk, offset in shared memory) for each 16 bytes of kRows rows.
template <int D, int kRows, typename F>
__device__ __forceinline__ void ForChunks(const F& f) {
  constexpr int kChunks = D / 8, kRowStep = GradShape<D>::kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int i = 0; i < kRows / kRowStep; ++i) {
    const int row = first + i * kRowStep;
    f(row, chunk, PanelOffset(kRows, row, chunk));
  }
}

// Rows `first` to `end` (at most kRows) of keys and of values.
template <int D, int kRows>
__device__ __forceinline__ void CopyKeysValues(const Params& p, int kv_head, int first, int end,
                                               char* keys, char* values) {
  const bf16* k = p.qkv.data + p.KeyColumn(kv_head);
  const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * D;
  ForChunks<D, kRows>([&](int row, int chunk, int offset) {
    const bool valid = first + row < end;
    const bf16* from = k + (valid ? first + row : first) * p.qkv.stride + chunk * 8;
    AsyncCopy16OrZero(keys + offset, from, valid);
    AsyncCopy16OrZero(values + offset, from + to_values, valid);
  });
}

// Packed queries `first` to `end` and the gradients of their outputs.
template <int D, int kRows>
__device__ __forceinline__ void CopyQueries(const Params& p, int kv_head, int first, int end,
                                            char* queries, char* douts) {
  const int group = p.group.group;
  ForChunks<D, kRows>([&](int index, int chunk, int offset) {
    const bool valid = first + index < end;
    const int packed = valid ? first + index : first, row = p.group.RowOf(packed);
    const int column = (kv_head * group + packed - row * group) * D + chunk * 8;
    AsyncCopy16OrZero(queries + offset, p.qkv.Row(row) + column, valid);
    AsyncCopy16OrZero(douts + offset, p.dout.Row(row) + column, valid);
  });
}

// sums[64, 64] = own[64, D] other[64, D]^T.
template <int D>
__device__ __forceinline__ void Scores(const char* own, int first, const char* other,
                                       float (&sums)[32]) {
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    WgmmaShared<false, false>(sums, RowOperand(own, GradShape<D>::kOwn, first, k),
                              RowOperand(other, kStep, 0, k), k > 0);
  }
}
// sums[64, D] += left[64, 64] other[64, D].
template <int D>
__device__ __forceinline__ void AddProduct(const uint32_t (&left)[kStep / 16][4], const char* other,
                                           float (&sums)[D / 2]) {
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    WgmmaRegisters(sums, left[k], ColumnOperand(other, kStep, 16 * k, 0));
  }
}
__device__ __forceinline__ void PackAll(const float (&sums)[32], uint32_t (&left)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) PackOperand(sums, k, left[k]);
}

// A warp's 16 rows of sums, times a factor each, through shared memory (rows `first` on of a matrix
// of kOwn rows that nobody reads any more) to rows of the batch: to(row) is null past the end.
template <int D, typename F>
__device__ __forceinline__ void StoreRows(const float (&sums)[D / 2], float factor0, float factor1,
                                          char* matrix, int first, const F& to) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    char* top = matrix + PanelOffset(GradShape<D>::kOwn, first + g, j) + 4 * t;
    char* bottom = matrix + PanelOffset(GradShape<D>::kOwn, first + g + 8, j) + 4 * t;
    *reinterpret_cast<uint32_t*>(top) = PackBf16(sums[4 * j] * factor0, sums[4 * j + 1] * factor0);
    *reinterpret_cast<uint32_t*>(bottom) =
        PackBf16(sums[4 * j + 2] * factor1, sums[4 * j + 3] * factor1);
  }
  __syncwarp();
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int row = first + (i * 32 + lane) / kChunks, chunk = lane % kChunks;
    bf16* out = to(row);
    if (out == nullptr) continue;
    *reinterpret_cast<uint4*>(out + chunk * 8) =
        *reinterpret_cast<const uint4*>(matrix + PanelOffset(GradShape<D>::kOwn, row, chunk));
  }
}

__device__ __forceinline__ char* Align(char* shared) {
  return shared + (1024 - SharedAddress(shared) % 1024) % 1024;
}

// --- dq: a block a (query tile, key-value head) ---

// The keys of a query tile, kStep at a time: the prefix, then the span's own.
struct KeySteps {
  QueryTile tile;
  int prefix_steps, num_steps;

  __device__ explicit KeySteps(const QueryTile& t) : tile(t) {
    prefix_steps = (t.prefix_rows + kStep - 1) / kStep;
    num_steps = prefix_steps + (OwnEnd() - t.span_first_row + kStep - 1) / kStep;
  }
  __device__ int OwnEnd() const { return tile.first_row + tile.num_rows; }
  __device__ bool InPrefix(int i) const { return i < prefix_steps; }
  __device__ int First(int i) const {
    return InPrefix(i) ? tile.prefix_first_row + i * kStep
                       : tile.span_first_row + (i - prefix_steps) * kStep;
  }
  __device__ int End(int i) const {
    return InPrefix(i) ? tile.prefix_first_row + tile.prefix_rows : OwnEnd();
  }
};

// dout . out of the warpgroup's 64 queries, two threads each.
template <int D>
__device__ void Deltas(const Params& p, int kv_head, int first, int end, float* deltas) {
  const int thread = threadIdx.x % 128, index = threadIdx.x / 128 * 64 + thread / 2;
  const int packed = first + index, group = p.group.group;
  float sum = 0;
  if (packed < end) {
    const int row = p.group.RowOf(packed);
    const int column = (kv_head * group + packed - row * group) * D + thread % 2 * (D / 2);
    const uint4* a = reinterpret_cast<const uint4*>(p.dout.Row(row) + column);
    const uint4* b = reinterpret_cast<const uint4*>(p.out.Row(row) + column);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      float x[8], y[8];
      Unpack<bf16>(a[i], x);
      Unpack<bf16>(b[i], y);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x[j] * y[j];
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (thread % 2 == 0) {
    deltas[index] = sum;
    if (packed < end) p.deltas[kv_head * p.stride + packed] = sum;
  }
}

// The two rows of a thread: maximum of the scores (in powers of two), this lane's share of the sum.
struct OnlineSoftmax {
  float max[2], sum[2];

  // s: scores, to exp2(s - max). Returns the factors of what was summed before.
  __device__ __forceinline__ float2 Fold(float (&s)[32]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      shrink[r] = Exp2(max[r] - top);
      max[r] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          float& x = s[4 * j + 2 * r + v];
          x = Exp2(x - top);
          part += x;
        }
      }
      sum[r] = sum[r] * shrink[r] + part;
    }
    return make_float2(shrink[0], shrink[1]);
  }
  __device__ __forceinline__ float Total(int r) const {
    float total = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
    return total + __shfl_xor_sync(~0u, total, 2);
  }
};

template <int D>
__global__ void __launch_bounds__(GradShape<D>::kThreads, GradShape<D>::kQueryBlocks)
    QueryKernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere plans never choose it: DeviceLimits::wgmma
  using Shape = GradShape<D>;
  extern __shared__ char unaligned[];
  char* queries = Align(unaligned);
  char* douts = queries + Shape::kOwnBytes;
  char* stages = douts + Shape::kOwnBytes;
  __shared__ float deltas[Shape::kOwn];
  WaitForPredecessor();
  LetSuccessorStart();

  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  const KeySteps steps(p.query_tiles[blockIdx.x / p.num_kv_heads]);
  const int group = p.group.group;
  const int first = steps.tile.first_row * group, end = steps.OwnEnd() * group;
  const auto fetch = [&](int i) {
    if (i < steps.num_steps) {
      char* stage = stages + i % kStages * Shape::kStageBytes;
      CopyKeysValues<D, kStep>(p, kv_head, steps.First(i), steps.End(i), stage,
                               stage + Shape::kStepBytes);
    }
    CommitCopies();
  };
  CopyQueries<D, Shape::kOwn>(p, kv_head, first, end, queries, douts);
  for (int i = 0; i < kStages - 1; ++i) fetch(i);
  Deltas<D>(p, kv_head, first, end, deltas);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  const int group_first = warp / 4 * 64, own = warp * 16 + lane / 4;  // and own + 8
  int row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) row[r] = p.group.RowOf(min(first + own + 8 * r, end - 1));
  const float scale_log2 = p.scale * kLog2E;
  float delta[2] = {};
  OnlineSoftmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};
  float dq[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dq[i] = 0;
  for (int i = 0; i < steps.num_steps; ++i) {
    AwaitStage();
    fetch(i + kStages - 1);
    if (i == 0) delta[0] = deltas[own], delta[1] = deltas[own + 8];
    const char* keys = stages + i % kStages * Shape::kStageBytes;
    const char* values = keys + Shape::kStepBytes;
    float s[32], dp[32];
    WgmmaFence();
    Scores<D>(queries, group_first, keys, s);
    WgmmaCommit();
    Scores<D>(douts, group_first, values, dp);
    WgmmaCommit();
    WgmmaWait<1>();
    FenceRegisters(s);
#pragma unroll
    for (int j = 0; j < 32; ++j) s[j] *= scale_log2;
    // Rows of a warpgroup ascend: its first row sees least.
    const bool prefix = steps.InPrefix(i);
    const int first_key = steps.First(i);
    const int least = prefix ? steps.End(i) - 1 : p.group.RowOf(min(first + group_first, end - 1));
    if (first_key + kStep - 1 > least) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int last = (prefix ? least : row[r]) - first_key - 2 * t;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (8 * j > last) s[4 * j + 2 * r] = -INFINITY;
          if (8 * j + 1 > last) s[4 * j + 2 * r + 1] = -INFINITY;
        }
      }
    }
    const float2 shrink = softmax.Fold(s);
    WgmmaWait<0>();
    FenceRegisters(dp);
    uint32_t left[4][4];
#pragma unroll
    for (int j = 0; j < 32; ++j) dp[j] = s[j] * (dp[j] - delta[j / 2 % 2]);
    PackAll(dp, left);
#pragma unroll
    for (int j = 0; j < D / 2; ++j) dq[j] *= j / 2 % 2 == 0 ? shrink.x : shrink.y;
    FenceRegisters(dq);
    WgmmaFence();
    AddProduct<D>(left, keys, dq);
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(dq);
  }

  const float total[2] = {softmax.Total(0), softmax.Total(1)};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int packed = first + own + 8 * r;
    if (t == 0 && packed < end) {
      p.log_sums[kv_head * p.stride + packed] = softmax.max[r] + log2f(total[r]);
    }
  }
  __syncthreads();  // the queries are not read any more
  StoreRows<D>(dq, p.scale / total[0], p.scale / total[1], queries, warp * 16, [&](int index) {
    const int packed = first + index, at = p.group.RowOf(packed);
    return packed < end ? p.dqkv.Row(at) + (kv_head * group + packed - at * group) * D : nullptr;
  });
#endif
}

// --- dk and dv: a block a (key tile, key-value head) ---

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
      // Queries past the end: probability exp2(-infinity), delta 0.
      const int thread = threadIdx.x, packed = ahead.packed + thread % kStep;
      if (thread < 2 * kStep) {
        float* stat = stats + stage * 2 * kStep + thread;
        const float* from = (thread < kStep ? p.log_sums : p.deltas) + kv_head * p.stride + packed;
        if (packed < ahead.end) {
          AsyncCopy4(stat, from);
        } else {
          *stat = thread < kStep ? INFINITY : 0;
        }
      }
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
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 log_sum = *reinterpret_cast<const float2*>(log_sums + 8 * j + 2 * t);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        float& x = s[4 * j + v];
        x = Exp2(x * scale_log2 - (v % 2 == 0 ? log_sum.x : log_sum.y));
      }
    }
    const int least = causal ? p.group.RowOf(now.packed) : now.key_end - 1;
    if (min(first_key + 63, tile_end - 1) > least) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int last = causal ? p.group.RowOf(now.packed + 8 * j + 2 * t + v % 2) : least;
          if (own_key + v / 2 * 8 > last) s[4 * j + v] = 0;
        }
      }
    }
    PackAll(s, left);
    FenceRegisters(dv);
    WgmmaFence();
    AddProduct<D>(left, douts, dv);
    WgmmaCommit();
    WgmmaWait<1>();
    FenceRegisters(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * j + 2 * t);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        dp[4 * j + v] = s[4 * j + v] * (dp[4 * j + v] - (v % 2 == 0 ? delta.x : delta.y));
      }
    }
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
    return;
  }
  __syncthreads();  // keys and values are not read any more
  const auto to = [&](int64_t column) {
    return [&p, &tile, tile_end, column](int index) {
      const int at = tile.first_row + index;
      return at < tile_end ? p.dqkv.Row(at) + column : nullptr;
    };
  };
  StoreRows<D>(dk, p.scale, p.scale, keys, warp * 16, to(p.KeyColumn(kv_head)));
  StoreRows<D>(dv, 1, 1, values, warp * 16, to(p.ValueColumn(kv_head)));
#endif
}

// Blocks a (sum, key-value head).
constexpr int kSumThreads = 256, kSumBlocks = 4;

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

template <int D>
void Run(const Params& params, const AttentionGradPlan& plan, cudaStream_t stream) {
  using Shape = GradShape<D>;
  static const bool allowed = [] {
    AllowSharedBytes(QueryKernel<D>, Shape::kSharedBytes);
    AllowSharedBytes(KeyKernel<D>, Shape::kSharedBytes);
    return true;
  }();
  (void)allowed;
  const auto blocks = [&](size_t tiles) {
    return dim3(static_cast<unsigned>(tiles * params.num_kv_heads));
  };
  Launch(QueryKernel<D>, blocks(plan.query_tiles.size()), dim3(Shape::kThreads),
         Shape::kSharedBytes, stream, params);
  Launch(KeyKernel<D>, blocks(plan.key_tiles.size()), dim3(Shape::kThreads), Shape::kSharedBytes,
         stream, params);
  if (plan.sums.empty()) return;
  dim3 grid = blocks(plan.sums.size());
  grid.y = kSumBlocks;
  Launch(KeySumKernel<D>, grid, dim3(kSumThreads), 0, stream, params);
}

template <typename T>
AttentionGradParams<T> MakeParams(const TensorView& dout, const TensorView& qkv,
                                  const TensorView& out, const HeadShape& heads, float scale,
                                  const AttentionGradPlan& plan, const int32_t* words,
                                  void* workspace, const TensorView& dqkv) {
  AttentionGradParams<T> p;
  p.qkv = AsMatrix<const T>(qkv);
  p.dout = AsMatrix<const T>(dout);
  p.out = AsMatrix<const T>(out);
  p.dqkv = AsMatrix<T>(dqkv);
  p.query_tiles = reinterpret_cast<const QueryTile*>(words);
  p.key_tiles = reinterpret_cast<const KeyTile*>(p.query_tiles + plan.query_tiles.size());
  p.runs = reinterpret_cast<const QueryRun*>(p.key_tiles + plan.key_tiles.size());
  p.sums = reinterpret_cast<const KeySum*>(p.runs + plan.runs.size());
  p.num_kv_heads = static_cast<int>(heads.num_kv_heads);
  p.head_dim = static_cast<int>(heads.head_dim);
  p.group = MakeGroupSize(heads.group());
  p.scale = scale;
  p.stride = plan.num_rows * heads.group();
  p.log_sums = static_cast<float*>(workspace);
  p.deltas = p.log_sums + p.stride * heads.num_kv_heads;
  p.partials = p.log_sums + (2 * p.stride * heads.num_kv_heads + 3) / 4 * 4;
  return p;
}

}  // namespace

void AttentionGrad(const TensorView& dout, const TensorView& qkv, const TensorView& out,
                   const HeadShape& heads, float scale, const AttentionGradPlan& plan,
                   const int32_t* words, void* workspace, const TensorView& dqkv,
                   cudaStream_t stream) {
  CHECK(qkv.cols == heads.qkv_width() && dqkv.cols == heads.qkv_width());
  CHECK(dout.cols == heads.q_width() && out.cols == heads.q_width());
  CHECK(dout.dtype == qkv.dtype && out.dtype == qkv.dtype && dqkv.dtype == qkv.dtype);
  CHECK_LE(plan.num_rows, qkv.rows);
  CHECK_LT(plan.num_rows * heads.group(), int64_t{1} << 28);
  if (plan.query_tiles.empty()) return;
  const auto params = [&](auto tag) {
    return MakeParams<decltype(tag)>(dout, qkv, out, heads, scale, plan, words, workspace, dqkv);
  };
  const auto query_tiles = static_cast<int64_t>(plan.query_tiles.size());
  const auto key_tiles = static_cast<int64_t>(plan.key_tiles.size());
  if (!plan.tensor_cores) {
    ForDType(qkv.dtype,
             [&](auto tag) { AttentionGradSimple(params(tag), query_tiles, key_tiles, stream); });
    return;
  }
  for (const TensorView& view : {dout, qkv, out, dqkv}) CHECK(VectorAligned(view));
  if (heads.head_dim == 128) return Run<128>(params(bf16{}), plan, stream);
  Run<64>(params(bf16{}), plan, stream);
}

}  // namespace orrery::kernels::cuda

// The kernel of attention_grad_warpgroups.cu that gives dq, and of each query what the kernel over
// keys then reads: the log of its sum, and dout . out. A thread block takes a query tile with all
// heads of one key-value head's group, and runs over the keys that its queries see.
#pragma once

#include "kernels/attention/attention_grad_products.cuh"
#include "kernels/cuda/launch.cuh"

namespace orrery::kernels::cuda::grad_warpgroups {

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

// Scores of row r of a thread's two, of keys past the step's `last`, become -infinity.
__device__ __forceinline__ void HideKeys(int last, int t, int r, float (&s)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (8 * j > last - 2 * t) s[4 * j + 2 * r] = -INFINITY;
    if (8 * j + 1 > last - 2 * t) s[4 * j + 2 * r + 1] = -INFINITY;
  }
}

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
      for (int r = 0; r < 2; ++r) HideKeys((prefix ? least : row[r]) - first_key, t, r, s);
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

}  // namespace orrery::kernels::cuda::grad_warpgroups

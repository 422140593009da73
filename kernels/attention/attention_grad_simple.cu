// Attention's gradient for float32 and for what the tensor-core kernels do not take: a warp a
// (row, head), lanes over D, any D up to 256. For parity, not speed.
#include "kernels/attention/attention_grad_parts.cuh"
#include "kernels/cuda/launch.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = 8;  // D up to 256

// A row of D values, dealt to the lanes; zeros past its end.
struct LaneRow {
  float x[kPerLane];
};

template <typename T>
__device__ __forceinline__ LaneRow Load(const T* row, int d, int lane) {
  LaneRow out;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) out.x[i] = lane + 32 * i < d ? ToFloat(row[lane + 32 * i]) : 0;
  return out;
}
template <typename T>
__device__ __forceinline__ void Store(const LaneRow& row, float factor, int d, int lane, T* to) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < d) to[lane + 32 * i] = FromFloat<T>(row.x[i] * factor);
  }
}
__device__ __forceinline__ float Dot(const LaneRow& a, const LaneRow& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum += a.x[i] * b.x[i];
  return WarpSum(sum);
}
__device__ __forceinline__ void AddScaled(float factor, const LaneRow& a, LaneRow* sum) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum->x[i] += factor * a.x[i];
}

// One query's pass over its keys: the softmax online, and dq with it.
template <typename T>
struct QueryPass {
  const AttentionGradParams<T>& p;
  int kv_head, lane;
  LaneRow q, dout, dq;
  float delta, max, sum;

  __device__ void Keys(int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      const LaneRow k = Load(p.qkv.Row(row) + p.KeyColumn(kv_head), p.head_dim, lane);
      const LaneRow v = Load(p.qkv.Row(row) + p.ValueColumn(kv_head), p.head_dim, lane);
      const float s = p.scale * Dot(q, k);
      const float next = fmaxf(max, s), shrink = expf(max - next), e = expf(s - next);
      max = next;
      sum = sum * shrink + e;
      const float ds = e * (Dot(dout, v) - delta);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) dq.x[i] = dq.x[i] * shrink + ds * k.x[i];
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) QueryKernel(AttentionGradParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_heads = p.num_kv_heads * static_cast<int>(p.group.group);
  const QueryTile tile = p.query_tiles[blockIdx.x / num_heads];
  const int head = static_cast<int>(blockIdx.x) % num_heads, group = p.group.group;
  const int64_t column = int64_t{head} * p.head_dim;
  for (int64_t row = tile.first_row + warp; row < tile.first_row + tile.num_rows; row += kWarps) {
    QueryPass<T> pass = {p, head / group, lane, {}, {}, {}, 0, -INFINITY, 0};
    pass.q = Load(p.qkv.Row(row) + column, p.head_dim, lane);
    pass.dout = Load(p.dout.Row(row) + column, p.head_dim, lane);
    pass.delta = Dot(pass.dout, Load(p.out.Row(row) + column, p.head_dim, lane));
    pass.Keys(tile.prefix_first_row, tile.prefix_rows);
    pass.Keys(tile.span_first_row, row + 1 - tile.span_first_row);
    Store(pass.dq, p.scale / pass.sum, p.head_dim, lane, p.dqkv.Row(row) + column);
    if (lane == 0) {
      const int64_t at = head / group * p.stride + row * group + head % group;
      p.log_sums[at] = pass.max + logf(pass.sum);
      p.deltas[at] = pass.delta;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) KeyKernel(AttentionGradParams<T> p) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.group.group;
  const KeyTile tile = p.key_tiles[blockIdx.x / p.num_kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads, d = p.head_dim;
  for (int64_t row = tile.first_row + warp; row < tile.first_row + tile.num_rows; row += kWarps) {
    const LaneRow k = Load(p.qkv.Row(row) + p.KeyColumn(kv_head), d, lane);
    const LaneRow v = Load(p.qkv.Row(row) + p.ValueColumn(kv_head), d, lane);
    LaneRow dk = {}, dv = {};
    for (int i = 0; i < tile.num_runs; ++i) {
      const QueryRun run = p.runs[tile.first_run + i];
      if (run.key_end >= 0 && row >= run.key_end) continue;
      const int64_t first = run.key_end < 0 ? row : run.first_row;
      const int64_t end = int64_t{run.first_row + run.num_rows} * group;
      for (int64_t packed = first * group; packed < end; ++packed) {
        const int64_t query = packed / group, column = (kv_head * group + packed % group) * d;
        const LaneRow q = Load(p.qkv.Row(query) + column, d, lane);
        const LaneRow dout = Load(p.dout.Row(query) + column, d, lane);
        const float prob = expf(p.scale * Dot(q, k) - p.log_sums[kv_head * p.stride + packed]);
        AddScaled(prob, dout, &dv);
        AddScaled(prob * (Dot(dout, v) - p.deltas[kv_head * p.stride + packed]), q, &dk);
      }
    }
    Store(dk, p.scale, d, lane, p.dqkv.Row(row) + p.KeyColumn(kv_head));
    Store(dv, 1, d, lane, p.dqkv.Row(row) + p.ValueColumn(kv_head));
  }
}

template <typename T>
void Run(const AttentionGradParams<T>& params, const AttentionGradPlan& plan, cudaStream_t stream) {
  CHECK_LE(params.head_dim, 32 * kPerLane);
  const size_t kv_heads = params.num_kv_heads, heads = kv_heads * params.group.group;
  Launch(QueryKernel<T>, static_cast<unsigned>(plan.query_tiles.size() * heads), 32 * kWarps, 0,
         stream, params);
  Launch(KeyKernel<T>, static_cast<unsigned>(plan.key_tiles.size() * kv_heads), 32 * kWarps, 0,
         stream, params);
}

}  // namespace

void AttentionGradSimple(const AttentionGradParams<float>& params, const AttentionGradPlan& plan,
                         cudaStream_t stream) {
  Run(params, plan, stream);
}
void AttentionGradSimple(const AttentionGradParams<BFloat16>& params, const AttentionGradPlan& plan,
                         cudaStream_t stream) {
  Run(params, plan, stream);
}

}  // namespace orrery::kernels::cuda

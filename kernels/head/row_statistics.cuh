// Statistics of rows of logits at a temperature on a GPU, in pieces of 1,024: the sampler's
// log-probs and the trainer's come from the same functions here, so equal logits give equal bits.
//
//   a piece:  max,  sum_j 2^t_j,  sum_j 2^t_j t_j,   t_j = (x_j - max) log2(e) / T
//   a row:    the pieces folded to the row's maximum, in one fixed order
//   logprob(i) = (x_i - max) / T - log_sum,  entropy = log_sum - sum_j p_j (x_j - max) / T
#pragma once

#include <cmath>

#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

inline constexpr int kPieceSize = 1024;
inline constexpr int kMaxPieces = 256;
inline constexpr int64_t kMaxVocabulary = int64_t{kPieceSize} * kMaxPieces;

struct alignas(16) PieceStats {
  float max = 0, sum = 0, weighted = 0;
  float unused = 0;
};

struct alignas(16) RowStats {
  float max = 0;  // of the logits, not tempered
  float log_sum = 0;
  float entropy = 0;
  int32_t finite = 0;

  __device__ __forceinline__ float Logprob(float logit, float inverse_temperature) const {
    return __fsub_rn(__fmul_rn(__fsub_rn(logit, max), inverse_temperature), log_sum);
  }
};

// Inverse temperature, and the factor that turns differences of logits into powers of two.
struct Tempering {
  float inverse = 1, scale = 1;
};
__device__ __forceinline__ Tempering TemperingOf(float temperature) {
  const float inverse = temperature > 0 ? __fdiv_rn(1.0f, temperature) : 1.0f;
  return {inverse, __fmul_rn(inverse, kLog2E)};
}

// Sums over this lane and those before it.
__device__ __forceinline__ double WarpScan(double x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(~0u, x, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) x += before;
  }
  return x;
}

// One warp, one piece: `valid` logits from `from` on, 1 to 1,024 of them.
template <typename T>
__device__ __forceinline__ PieceStats StatsOfPiece(const T* from, int valid, bool aligned,
                                                   float scale) {
  constexpr int kN = kVectorSize<T>, kVectors = kPieceSize / 32 / kN;
  const int lane = threadIdx.x % 32;
  uint4 raw[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + 32 * v) * kN;
    raw[v] = LoadUpTo(from + i, valid - i, aligned);
  }
  float max = -INFINITY;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float x[kN];
    Unpack<T>(raw[v], x);
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if ((lane + 32 * v) * kN + e < valid) max = fmaxf(max, x[e]);
    }
  }
  max = WarpMax(max);
  float sum = 0, weighted = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float x[kN];
    Unpack<T>(raw[v], x);
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if ((lane + 32 * v) * kN + e >= valid) continue;
      const float t = (x[e] - max) * scale, power = Exp2(t);
      sum += power;
      weighted = fmaf(power, t, weighted);  // NaN where a logit is NaN or infinite
    }
  }
  return {max, WarpSum(sum), WarpSum(weighted), 0};
}

// A row's pieces in one warp: lane l holds pieces l k to l k + k - 1, k = ceil(num_pieces / 32).
struct FoldedRow {
  static constexpr int kPerLane = kMaxPieces / 32;
  RowStats stats;
  double total = 0;        // sum of the sums
  float maxima[kPerLane];  // of this lane's pieces
  double sums[kPerLane];   // the same, in powers relative to the row's maximum
  int per_lane = 0;
};

__device__ __forceinline__ FoldedRow FoldPieces(const PieceStats* pieces, int num_pieces,
                                                float scale) {
  constexpr int kPerLane = FoldedRow::kPerLane;
  const int lane = threadIdx.x % 32;
  FoldedRow row;
  row.per_lane = (num_pieces + 31) / 32;
  PieceStats own[kPerLane];
  float max = -INFINITY;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int piece = lane * row.per_lane + i;
    own[i] = {-INFINITY, 0, 0, 0};
    if (i < row.per_lane && piece < num_pieces) {
      own[i] = pieces[piece];
      finite = finite && own[i].weighted * 0 == 0 && own[i].sum * 0 == 0;
    }
    row.maxima[i] = own[i].max;
    max = fmaxf(max, own[i].max);
  }
  max = WarpMax(max);
  double total = 0, weighted = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float t = (own[i].max - max) * scale, power = Exp2(t);
    row.sums[i] = power > 0 ? static_cast<double>(own[i].sum) * power : 0;
    total += row.sums[i];
    if (power > 0) weighted += (own[i].weighted + static_cast<double>(own[i].sum) * t) * power;
  }
  row.total = WarpSum(total);
  weighted = WarpSum(weighted);
  row.stats.max = max;
  row.stats.finite = __all_sync(~0u, finite);
  row.stats.log_sum = logf(static_cast<float>(row.total));
  row.stats.entropy =
      row.stats.log_sum - static_cast<float>(0.69314718055994531 * weighted / row.total);
  return row;
}

}  // namespace orrery::kernels::cuda

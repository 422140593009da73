// Drawing from weights in id order by one uniform number, a warp at a time.
#pragma once

#include "kernels/head/row_statistics.cuh"
#include "kernels/sampler/sampler_cuda.h"
#include "orchestrator/base/hash.h"

namespace orrery::kernels::cuda {

// The same number as the CPU sampler's.
__device__ __forceinline__ double Uniform(uint64_t seed, uint64_t position) {
  return static_cast<double>(HashSeed({seed, position}) >> 11) * 0x1.0p-53;
}

__device__ __forceinline__ bool HasPenalties(const SamplerRow& row) {
  return row.repetition_penalty != 1 || row.presence_penalty != 0;
}
// Whether a row takes passes of its own over its logits. Filters never change what greedy takes.
__device__ __forceinline__ bool NeedsOwnPasses(const SamplerRow& row) {
  if (HasPenalties(row) || row.num_banned_ids > 0) return true;
  return row.temperature > 0 && (row.top_k > 0 || row.top_p < 1 || row.min_p > 0);
}

struct Place {
  int index = -1;       // that the target falls into; -1: no weight anywhere
  double fraction = 0;  // of its weight that lies before the target
};

// Lane l has `count` weights, weight(i) being the (l * count + i)-th of all. target: in [0, total)
// but for rounding; past the end it falls into the last one that has weight.
template <typename Weight>
__device__ __forceinline__ Place FindPlace(int count, double target, const Weight& weight) {
  const int lane = threadIdx.x % 32;
  double own = 0;
  for (int i = 0; i < count; ++i) own += weight(i);
  const double end = WarpScan(own);
  unsigned lanes = __ballot_sync(~0u, own > 0 && end > target);
  const bool past = lanes == 0;
  if (past) lanes = __ballot_sync(~0u, own > 0);
  if (lanes == 0) return {};
  const int owner = past ? 31 - __clz(lanes) : __ffs(lanes) - 1;
  Place place;
  if (lane == owner) {
    double left = target - (end - own);
    for (int i = 0; i < count; ++i) {
      const double w = weight(i);
      if (!(w > 0)) continue;
      place = {lane * count + i, fmin(fmax(left / w, 0.0), 1.0)};
      if (left < w) break;
      left -= w;
    }
  }
  place.index = __shfl_sync(~0u, place.index, owner);
  place.fraction = __shfl_sync(~0u, place.fraction, owner);
  return place;
}

// The 32 consecutive logits of a piece that a lane draws from.
template <typename T>
__device__ __forceinline__ void LoadLaneOfPiece(const T* piece, int valid, bool aligned,
                                                float (&x)[kPieceSize / 32]) {
  constexpr int kN = kVectorSize<T>;
  const int first = threadIdx.x % 32 * (kPieceSize / 32);
#pragma unroll
  for (int v = 0; v < kPieceSize / 32 / kN; ++v) {
    float values[kN];
    const int i = first + v * kN;
    Unpack<T>(LoadUpTo(piece + i, valid - i, aligned), values);
#pragma unroll
    for (int e = 0; e < kN; ++e) x[v * kN + e] = values[e];
  }
}

// Draws inside a piece: `fraction` of its weight lies before the token. weight(i, x): of logit x,
// the i-th of the piece. Returns the index in the piece, -1 where nothing has weight.
template <typename T, typename Weight>
__device__ __forceinline__ int DrawInPiece(const T* piece, int valid, bool aligned, double fraction,
                                           const Weight& weight) {
  constexpr int kOwn = kPieceSize / 32;
  float x[kOwn];
  LoadLaneOfPiece(piece, valid, aligned, x);
  const int first = threadIdx.x % 32 * kOwn;
  double own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    x[i] = first + i < valid ? weight(first + i, x[i]) : 0;
    own += x[i];
  }
  const double end = WarpScan(own);
  const double target = fraction * __shfl_sync(~0u, end, 31);
  unsigned lanes = __ballot_sync(~0u, own > 0 && end > target);
  const bool past = lanes == 0;
  if (past) lanes = __ballot_sync(~0u, own > 0);
  if (lanes == 0) return -1;
  const int owner = past ? 31 - __clz(lanes) : __ffs(lanes) - 1;
  double left = target - (end - own);
  int chosen = -1;
  bool done = false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (done || !(x[i] > 0)) continue;
    chosen = first + i;
    done = left < x[i];
    left -= x[i];
  }
  return __shfl_sync(~0u, chosen, owner);
}

}  // namespace orrery::kernels::cuda

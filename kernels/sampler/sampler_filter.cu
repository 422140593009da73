// A thread block a row for rows that filter, are penalised or ban ids: bitmaps of the ids that
// their history names, the cuts of all filters (row_filter.cuh), and the draw from what is left.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/sampler/row_filter.cuh"
#include "kernels/sampler/sampler_filter.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kMaxBlocks = 512;  // each takes every 512th row

int NumWords(int64_t vocabulary) { return static_cast<int>(DivideUp(vocabulary, 32)); }

size_t SharedBytes(int64_t vocabulary) {
  return sizeof(FilterShared) + 3 * NumWords(vocabulary) * sizeof(uint32_t);
}

__device__ __forceinline__ void SetBits(const int32_t* ids, int first, int end, int vocabulary,
                                        uint32_t* bits) {
  for (int i = first + threadIdx.x; i < end; i += kFilterThreads) {
    const int id = ids[i];
    if (id >= 0 && id < vocabulary) atomicOr(&bits[id / 32], 1u << (id % 32));
  }
}

// The bitmaps of a row's ids, as far as it reads them.
template <typename T>
__device__ __forceinline__ void MarkIds(uint32_t* bits, int words, RowFilter<T>* filter) {
  const SamplerRow& row = filter->row();
  for (int i = threadIdx.x; i < 3 * words; i += kFilterThreads) bits[i] = 0;
  __syncthreads();
  filter->seen = filter->generated = filter->banned = nullptr;
  if (row.repetition_penalty != 1) {
    filter->seen = bits;
    SetBits(row.ids, 0, row.num_ids, filter->vocabulary, bits);
  }
  if (row.presence_penalty != 0) {
    filter->generated = bits + words;
    SetBits(row.ids, row.num_prompt_ids, row.num_ids, filter->vocabulary, bits + words);
  }
  if (row.num_banned_ids > 0) {
    filter->banned = bits + 2 * words;
    SetBits(row.banned_ids, 0, row.num_banned_ids, filter->vocabulary, bits + 2 * words);
  }
  __syncthreads();
}

// What all filters keep together.
struct Kept {
  Cut cut;
  int listed = 0;          // where above 0, the first so many of the list, and no cut
  float least_weight = 0;  // min-p
};

__device__ __forceinline__ Goal MassGoal(float top_p, unsigned long long mass) {
  const double target = ceil(static_cast<double>(top_p) * static_cast<double>(mass));
  return {static_cast<unsigned long long>(fmax(target, 1.0)), true};
}

// Where the kept ids are among the first few hundred: orders those in the list and returns how many
// are kept. Else 0.
template <typename T>
__device__ __forceinline__ int KeepListed(const RowFilter<T>& filter, const PieceStats* pieces,
                                          bool by_rank, bool by_mass) {
  const SamplerRow& row = filter.row();
  const int rank = by_rank ? row.top_k : kMostListedRank;
  if (rank > kMostListedRank) return 0;
  const uint32_t low = filter.BoundOfRank(rank, pieces), high = SortKey(filter.top);
  unsigned long long mass = 0;
  const int count = by_rank ? filter.template GatherValues<false>(low, high, &mass)
                            : filter.template GatherValues<true>(low, high, &mass);
  if (count > kListSize) return 0;
  filter.SortFirst(count);
  if (by_rank) {
    mass = filter.CutInList(count, {}, {static_cast<unsigned long long>(row.top_k), false}).mass;
  }
  if (by_mass) filter.CutInList(count, {}, MassGoal(row.top_p, mass));
  return filter.shared->found_index + 1;
}

template <typename T>
__device__ __forceinline__ Kept ApplyFilters(const RowFilter<T>& filter, const PieceStats* pieces) {
  const SamplerRow& row = filter.row();
  Kept kept;
  if (row.min_p > 0) kept.least_weight = fminf(row.min_p, 1.0f);
  const bool by_rank = row.top_k > 0 && row.top_k < filter.vocabulary, by_mass = row.top_p < 1;
  if (!by_rank && !by_mass) return kept;
  kept.listed = KeepListed(filter, pieces, by_rank, by_mass);
  if (kept.listed > 0) return kept;
  filter.CountFirst();
  Tally tally = by_rank || !by_mass ? Tally{} : filter.TotalOfBins();
  if (by_rank) {
    tally = filter.FindCut({static_cast<unsigned long long>(row.top_k), false});
    kept.cut = filter.shared->cut;
  }
  if (by_mass) {
    if (by_rank) filter.CountFirst();  // may have been overwritten
    filter.FindCut(MassGoal(row.top_p, tally.mass));
    kept.cut = filter.shared->cut;
  }
  return kept;
}

// Draws from the first of the list, in id order.
template <typename T>
__device__ __forceinline__ int DrawListed(const RowFilter<T>& filter, const Kept& kept) {
  unsigned long long* list = filter.shared->list;
  for (int i = threadIdx.x; i < kept.listed; i += kFilterThreads) {
    const float w = filter.Weight(FromSortKey(~static_cast<uint32_t>(list[i] >> 32)));
    list[i] = list[i] << 32 | __float_as_uint(w >= kept.least_weight ? w : 0.0f);
  }
  filter.SortFirst(kept.listed);
  if (threadIdx.x >= 32) return 0;
  const int per_lane = (kept.listed + 31) / 32;
  const auto weight = [&](int i) {
    const int at = static_cast<int>(threadIdx.x) * per_lane + i;
    return at < kept.listed ? static_cast<double>(__uint_as_float(static_cast<uint32_t>(list[at])))
                            : 0.0;
  };
  double total = 0;
  for (int i = 0; i < per_lane; ++i) total += weight(i);
  total = WarpSum(total);
  const double uniform = Uniform(filter.row().seed, filter.row().position);
  const Place place = FindPlace(per_lane, uniform * total, weight);
  return place.index < 0 ? 0 : static_cast<int>(list[place.index] >> 32);
}

// Draws from what is left, in id order.
template <typename T>
__device__ __forceinline__ int DrawKept(const RowFilter<T>& filter, const Kept& kept) {
  constexpr int kN = kVectorSize<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int num_pieces = (filter.vocabulary + kPieceSize - 1) / kPieceSize;
  const auto weight = [&](int id, float x) {
    const float value = filter.Value(id, x);
    const float w = filter.Weight(value);
    return kept.cut.Keeps(SortKey(value), id) && w >= kept.least_weight ? w : 0.0f;
  };
  for (int piece = warp; piece < num_pieces; piece += kFilterThreads / 32) {
    const int first = piece * kPieceSize;
    double sum = 0;
#pragma unroll
    for (int v = 0; v < kPieceSize / 32 / kN; ++v) {
      const int i = first + (lane + 32 * v) * kN;
      float x[kN];
      Unpack<T>(LoadUpTo(filter.logits + i, filter.vocabulary - i, filter.aligned), x);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        if (i + e < filter.vocabulary) sum += weight(i + e, x[e]);
      }
    }
    sum = WarpSum(sum);
    if (lane == 0) filter.shared->piece_sums[piece] = sum;
  }
  __syncthreads();
  if (warp != 0) return 0;
  const int per_lane = (num_pieces + 31) / 32;
  const auto piece_sum = [&](int i) {
    const int piece = lane * per_lane + i;
    return piece < num_pieces ? filter.shared->piece_sums[piece] : 0.0;
  };
  double total = 0;
  for (int i = 0; i < per_lane; ++i) total += piece_sum(i);
  total = WarpSum(total);
  const double uniform = Uniform(filter.row().seed, filter.row().position);
  const Place place = FindPlace(per_lane, uniform * total, piece_sum);
  if (place.index < 0) return 0;
  const int first = place.index * kPieceSize;
  const int index =
      DrawInPiece(filter.logits + first, min(filter.vocabulary - first, kPieceSize), filter.aligned,
                  place.fraction, [&](int i, float x) { return weight(first + i, x); });
  return first + max(index, 0);
}

template <typename T>
__device__ __forceinline__ int DrawFiltered(RowFilter<T> filter, float max_logit,
                                            const PieceStats* pieces) {
  filter.top = max_logit;
  if (filter.marked()) {
    const unsigned long long best = filter.FindTop();
    filter.top = FromSortKey(static_cast<uint32_t>(best >> 32));
    if (!isfinite(filter.top)) return 0;  // nothing is left
    if (filter.row().temperature <= 0) return static_cast<int>(~static_cast<uint32_t>(best));
  }
  const Kept kept = ApplyFilters(filter, pieces);
  return kept.listed > 0 ? DrawListed(filter, kept) : DrawKept(filter, kept);
}

template <typename T>
__global__ void __launch_bounds__(kFilterThreads, 2)
    FilteredRowsKernel(Matrix<const T> logits, int64_t num_rows, int vocabulary, bool aligned,
                       const SamplerRow* rows, const RowStats* stats, const PieceStats* pieces,
                       SamplerOutput out) {
  extern __shared__ __align__(16) unsigned char memory[];
  LetSuccessorStart();
  WaitForPredecessor();
  auto* shared = reinterpret_cast<FilterShared*>(memory);
  auto* bits = reinterpret_cast<uint32_t*>(shared + 1);
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    if (rows[r].active == 0) continue;
    if (!NeedsOwnPasses(rows[r]) || stats[r].finite == 0) continue;
    if (threadIdx.x == 0) shared->row = rows[r];
    __syncthreads();
    RowFilter<T> filter;
    filter.shared = shared;
    filter.logits = logits.Row(r);
    filter.vocabulary = vocabulary;
    filter.aligned = aligned;
    filter.tempering = TemperingOf(filter.row().temperature);
    MarkIds(bits, (vocabulary + 31) / 32, &filter);
    const int num_pieces = (vocabulary + kPieceSize - 1) / kPieceSize;
    const int token = DrawFiltered(filter, stats[r].max, pieces + r * num_pieces);
    if (threadIdx.x == 0) {
      out.token_ids[r] = token;
      out.logprobs[r] = stats[r].Logprob(ToFloat(filter.logits[token]), filter.tempering.inverse);
    }
    __syncthreads();
  }
}

}  // namespace

void SampleFilteredRows(const TensorView& logits, const SamplerRow* rows, const RowStats* stats,
                        const PieceStats* pieces, const SamplerOutput& out, cudaStream_t stream) {
  const size_t shared_bytes = SharedBytes(logits.cols);
  const unsigned blocks = static_cast<unsigned>(std::min(logits.rows, kMaxBlocks));
  ForDType(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    AllowSharedBytes(FilteredRowsKernel<T>, shared_bytes);
    Launch(FilteredRowsKernel<T>, blocks, kFilterThreads, shared_bytes, stream,
           AsMatrix<const T>(logits), logits.rows, static_cast<int>(logits.cols),
           VectorAligned(logits), rows, stats, pieces, out);
  });
}

}  // namespace orrery::kernels::cuda

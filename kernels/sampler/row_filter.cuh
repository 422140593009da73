// What a block of threads knows of one row that filters, and how it finds where the filters cut.
//
// Ids are ordered by their logit after penalties, larger first, then by id. Every filter keeps a
// beginning of that order, so each is a Cut: the last pair (key, id) that it keeps. Top-p sums
// weights as integers in units of 2^-44 of the largest: such sums do not depend on the order of
// additions, so atomics repeat bitwise.
//
// Mostly the cut lies within the first few hundred ids. So many maxima of parts of the row (pieces,
// or what a thread reads) bound the key of a rank from below: the ids from there on are gathered in
// one pass and sorted, and the token is drawn from the list. Where they are too many, or not
// enough, a cut is found by narrowing a range of keys with histograms of 2,048 bins, the first over
// the weight's logarithm, until few enough ids are left to sort.
#pragma once

#include <climits>

#include "kernels/sampler/draw.cuh"

namespace orrery::kernels::cuda {

constexpr int kFilterThreads = 512;
constexpr int kBins = 2048;
constexpr int kBinsPerPower = 32;  // of two, in the first histogram
constexpr int kListSize = 2048;
// The most maxima of threads that bound a rank: of 512, this many leave a thousand ids or so.
constexpr int kMostListedRank = 448;

struct Cut {
  uint32_t key = 0;
  int32_t id = INT_MAX;
  __device__ __forceinline__ bool Keeps(uint32_t other_key, int32_t other_id) const {
    return other_key > key || (other_key == key && other_id <= id);
  }
};

// Ids counted, and their weights summed.
struct Tally {
  unsigned long long count = 0, mass = 0;
};

// The shared memory of a block.
struct FilterShared {
  uint32_t bin_counts[kBins];
  uint32_t bin_low[kBins], bin_high[kBins];  // halves of the bins' masses
  unsigned long long list[kListSize];        // ~key, then id: ascending is the order of ids
  double piece_sums[kMaxPieces];
  Tally warp_tallies[kFilterThreads / 32];
  unsigned long long warp_best[kFilterThreads / 32];
  Tally found_before, found_through;
  int found_index;
  uint32_t low_key, high_key;
  int list_count;
  Cut cut;
  SamplerRow row;
};

__device__ __forceinline__ Tally Plus(const Tally& a, const Tally& b) {
  return {a.count + b.count, a.mass + b.mass};
}

// Sums over the block's threads up to and including this one.
__device__ __forceinline__ Tally BlockScan(Tally x, FilterShared* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Tally before = {__shfl_up_sync(~0u, x.count, step), __shfl_up_sync(~0u, x.mass, step)};
    if (lane >= step) x = Plus(x, before);
  }
  if (lane == 31) shared->warp_tallies[warp] = x;
  __syncthreads();
  for (int w = 0; w < warp; ++w) x = Plus(x, shared->warp_tallies[w]);
  __syncthreads();
  return x;
}

// The largest over the block.
__device__ __forceinline__ unsigned long long BlockMax(unsigned long long x, FilterShared* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  if (threadIdx.x % 32 == 0) shared->warp_best[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 0; w < kFilterThreads / 32; ++w) x = max(x, shared->warp_best[w]);
  __syncthreads();
  return x;
}

// Where to cut: after so many ids, or where the weights reach so much.
struct Goal {
  unsigned long long value = 0;
  bool mass = false;
  __device__ __forceinline__ bool ReachedBy(const Tally& t) const {
    return (mass ? t.mass : t.count) >= value;
  }
};

// The first of `count` <= 2,048 tallies at which the running sum from `before` on reaches the goal,
// into shared->found_*; left alone where none does.
template <typename Get>
__device__ __forceinline__ void FindFirst(int count, const Tally& before, const Goal& goal,
                                          const Get& get, FilterShared* shared) {
  constexpr int kOwn = kBins / kFilterThreads;
  const int first = threadIdx.x * kOwn;
  Tally own;
  for (int i = first; i < min(count, first + kOwn); ++i) own = Plus(own, get(i));
  const Tally through = Plus(before, BlockScan(own, shared));
  Tally running = {through.count - own.count, through.mass - own.mass};
  if (goal.ReachedBy(through) && !goal.ReachedBy(running)) {
    for (int i = first; i < min(count, first + kOwn); ++i) {
      const Tally next = Plus(running, get(i));
      if (goal.ReachedBy(next)) {
        shared->found_index = i;
        shared->found_before = running;
        shared->found_through = next;
        break;
      }
      running = next;
    }
  }
  __syncthreads();
}

// Ascending, in place; n a power of two.
__device__ __forceinline__ void SortList(unsigned long long* list, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < n / 2; i += kFilterThreads) {
        const int low = 2 * i - i % step, high = low + step;
        const bool ascending = (low & size) == 0;
        const unsigned long long a = list[low], b = list[high];
        if ((a > b) == ascending) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
  }
}

// One row, seen by a block. All functions but the small ones are called by all threads together.
template <typename T>
struct RowFilter {
  const T* logits;
  int vocabulary;
  bool aligned;
  Tempering tempering;
  const uint32_t* seen;  // one bit an id, null where nothing reads it
  const uint32_t* generated;
  const uint32_t* banned;
  FilterShared* shared;
  float top = 0;  // largest value of the row after penalties and bans

  __device__ __forceinline__ const SamplerRow& row() const { return shared->row; }

  __device__ __forceinline__ static bool Bit(const uint32_t* bits, int id) {
    return (bits[id / 32] >> (id % 32)) & 1;
  }
  // The logit after penalties; banned ids have none.
  __device__ __forceinline__ float Value(int id, float x) const {
    if (seen != nullptr && Bit(seen, id)) {
      x = x > 0 ? __fdiv_rn(x, row().repetition_penalty) : __fmul_rn(x, row().repetition_penalty);
    }
    if (generated != nullptr && Bit(generated, id)) x = __fsub_rn(x, row().presence_penalty);
    return banned != nullptr && Bit(banned, id) ? -INFINITY : x;
  }
  // Relative to the largest, as is the logarithm of base 2. Both fall with the value.
  __device__ __forceinline__ float LogWeight(float value) const {
    return (value - top) * tempering.scale;
  }
  __device__ __forceinline__ float Weight(float value) const { return Exp2(LogWeight(value)); }
  __device__ __forceinline__ unsigned long long Mass(float value) const {
    return static_cast<unsigned long long>(Weight(value) * 0x1p44f);
  }
  __device__ __forceinline__ int FirstBin(float value) const {
    const float bin = -LogWeight(value) * kBinsPerPower;
    return bin >= kBins - 1 ? kBins - 1 : max(static_cast<int>(bin), 0);
  }

  // Whether some values are not the logits.
  __device__ __forceinline__ bool marked() const {
    return seen != nullptr || generated != nullptr || banned != nullptr;
  }

  // f(id, value) for every id, spread over the block. plain: the values are the logits.
  template <bool plain = false, typename F>
  __device__ __forceinline__ void ForEach(const F& f) const {
    constexpr int kN = kVectorSize<T>, kAhead = 4;
    for (int first = threadIdx.x * kN; first < vocabulary; first += kAhead * kFilterThreads * kN) {
      uint4 raw[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int i = first + a * kFilterThreads * kN;
        raw[a] = LoadUpTo(logits + i, vocabulary - i, aligned);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        float x[kN];
        Unpack<T>(raw[a], x);
#pragma unroll
        for (int e = 0; e < kN; ++e) {
          const int id = first + a * kFilterThreads * kN + e;
          if (id < vocabulary) f(id, plain ? x[e] : Value(id, x[e]));
        }
      }
    }
  }

  // The first id of the order, as (key, ~id). Leaves the threads' maxima in the list.
  __device__ __forceinline__ unsigned long long FindTop() const {
    unsigned long long best = 0;
    ForEach([&](int id, float value) {
      const unsigned long long key = SortKey(value);
      best = max(best, key << 32 | static_cast<uint32_t>(~id));
    });
    shared->list[threadIdx.x] = ~static_cast<uint32_t>(best >> 32);
    return BlockMax(best, shared);
  }

  // A key that at least `rank` ids reach, from maxima of parts of the row: of its pieces, or of
  // what a thread reads (FindTop has left them where values are marked). rank: at most 448.
  __device__ __forceinline__ uint32_t BoundOfRank(int rank, const PieceStats* pieces) const {
    int count = (vocabulary + kPieceSize - 1) / kPieceSize;
    if (!marked() && 2 * rank <= count) {
      for (int i = threadIdx.x; i < count; i += kFilterThreads) {
        shared->list[i] = ~SortKey(pieces[i].max);
      }
    } else {
      count = kFilterThreads;
      if (!marked()) {
        float best = -INFINITY;
        ForEach<true>([&](int, float value) { best = fmaxf(best, value); });
        shared->list[threadIdx.x] = ~SortKey(best);
      }
    }
    SortFirst(count);
    const uint32_t bound = ~static_cast<uint32_t>(shared->list[rank - 1]);
    __syncthreads();
    return bound;
  }

  // Orders the first `count` of the list, which this block has written.
  __device__ __forceinline__ void SortFirst(int count) const {
    int size = 2;
    while (size < count) size *= 2;
    for (int i = count + threadIdx.x; i < size; i += kFilterThreads) shared->list[i] = ~0ull;
    __syncthreads();
    SortList(shared->list, size);
  }

  // Counts and masses by bin(value); bins outside [0, 2048) are left out.
  template <typename Bin>
  __device__ __forceinline__ void Count(const Bin& bin) const {
    for (int i = threadIdx.x; i < kBins; i += kFilterThreads) {
      shared->bin_counts[i] = shared->bin_low[i] = shared->bin_high[i] = 0;
    }
    __syncthreads();
    ForEach([&](int, float value) {
      const int b = bin(value);
      if (b < 0 || b >= kBins) return;
      atomicAdd(&shared->bin_counts[b], 1u);
      const unsigned long long mass = Mass(value);
      const uint32_t low = static_cast<uint32_t>(mass);
      if (mass == 0) return;
      const uint32_t old = atomicAdd(&shared->bin_low[b], low);
      const uint32_t high = static_cast<uint32_t>(mass >> 32) + (old + low < old ? 1 : 0);
      if (high != 0) atomicAdd(&shared->bin_high[b], high);
    });
    __syncthreads();
  }
  __device__ __forceinline__ void CountFirst() const {
    Count([&](float value) { return FirstBin(value); });
  }
  __device__ __forceinline__ Tally BinTally(int bin) const {
    const unsigned long long high = shared->bin_high[bin];
    return {shared->bin_counts[bin], high << 32 | shared->bin_low[bin]};
  }
  // All of the last histogram.
  __device__ __forceinline__ Tally TotalOfBins() const {
    const Goal never = {~0ull, true};
    FindFirst(
        kBins, {}, never, [&](int i) { return BinTally(i); }, shared);
    Tally total;
    for (const Tally& t : shared->warp_tallies) total = Plus(total, t);
    __syncthreads();
    return total;
  }

  // The keys whose first bin is `bin`, by bisection: bins rise as keys fall.
  __device__ __forceinline__ void FirstBinKeys(int bin) const {
    if (threadIdx.x < 2) {
      // Thread 0: the lowest key with a bin of at most `bin`; thread 1: the lowest with less.
      const int most = bin - static_cast<int>(threadIdx.x);
      uint32_t low = SortKey(-INFINITY), high = SortKey(INFINITY) + 1;
      while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (middle > SortKey(INFINITY) || FirstBin(FromSortKey(middle)) <= most) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      if (threadIdx.x == 0) shared->low_key = low;
      if (threadIdx.x == 1) shared->high_key = low - 1;
    }
    __syncthreads();
  }

  // Of equal keys, more than the list holds: the r-th by id.
  __device__ __forceinline__ void CutAmongEqual(uint32_t key, unsigned long long r) const {
    const int own = (vocabulary + kFilterThreads - 1) / kFilterThreads;
    const int first = threadIdx.x * own, end = min(vocabulary, first + own);
    const auto equal = [&](int id) { return SortKey(Value(id, ToFloat(logits[id]))) == key; };
    Tally mine;
    for (int id = first; id < end; ++id) mine.count += equal(id);
    unsigned long long before = BlockScan(mine, shared).count - mine.count;
    if (before < r && r <= before + mine.count) {
      for (int id = first; id < end; ++id) {
        if (equal(id) && ++before == r) shared->cut = {key, id};
      }
    }
    __syncthreads();
  }

  // The ids with keys from low to high, as many as go into the list; returns how many there are.
  // total: where asked for, the mass of all ids.
  template <bool plain, bool with_total>
  __device__ __forceinline__ int Gather(uint32_t low, uint32_t high,
                                        unsigned long long* total) const {
    if (threadIdx.x == 0) shared->list_count = 0;
    __syncthreads();
    Tally mine;
    // Keys are compared as values: fewer instructions where nearly all ids are passed over.
    const float least = low <= SortKey(-INFINITY) ? -INFINITY : FromSortKey(low);
    const float most = FromSortKey(high);
    ForEach<plain>([&](int id, float value) {
      if (with_total) mine.mass += Mass(value);
      if (!(value >= least && value <= most)) return;
      const int at = atomicAdd(&shared->list_count, 1);
      if (at < kListSize) {
        shared->list[at] =
            static_cast<unsigned long long>(~SortKey(value)) << 32 | static_cast<uint32_t>(id);
      }
    });
    if (with_total) {
      (void)BlockScan(mine, shared);
      for (const Tally& t : shared->warp_tallies) *total += t.mass;
    }
    __syncthreads();
    return shared->list_count;
  }

  // The same of the row's values, whatever they are.
  template <bool with_total>
  __device__ __forceinline__ int GatherValues(uint32_t low, uint32_t high,
                                              unsigned long long* total) const {
    if (marked()) return Gather<false, with_total>(low, high, total);
    return Gather<true, with_total>(low, high, total);
  }

  // Finds the cut among the ids with keys [low, high], at most 2,048, by sorting them.
  __device__ __forceinline__ Tally CutInRange(uint32_t low, uint32_t high, const Tally& before,
                                              const Goal& goal) const {
    const int count = min(Gather<false, false>(low, high, nullptr), kListSize);
    SortFirst(count);
    return CutInList(count, before, goal);
  }

  // Finds the cut in the ordered list; found_index is its place there, -1 where the goal is not
  // reached.
  __device__ __forceinline__ Tally CutInList(int count, const Tally& before,
                                             const Goal& goal) const {
    if (threadIdx.x == 0) shared->found_index = -1;
    __syncthreads();
    const auto key_of = [&](int i) { return ~static_cast<uint32_t>(shared->list[i] >> 32); };
    FindFirst(
        count, before, goal,
        [&](int i) {
          return Tally{1, Mass(FromSortKey(key_of(i)))};
        },
        shared);
    const int last = shared->found_index;
    if (threadIdx.x == 0 && last >= 0) {
      shared->cut = {key_of(last), static_cast<int32_t>(static_cast<uint32_t>(shared->list[last]))};
    }
    const Tally through = shared->found_through;
    __syncthreads();
    return through;
  }

  // Leaves the cut in shared->cut and returns what it keeps. The first histogram has been counted,
  // and all ids together reach the goal.
  __device__ __forceinline__ Tally FindCut(const Goal& goal) const {
    FindFirst(
        kBins, {}, goal, [&](int i) { return BinTally(i); }, shared);
    FirstBinKeys(shared->found_index);
    uint32_t low = shared->low_key, high = min(shared->high_key, SortKey(top));
    while (true) {
      const Tally before = shared->found_before, through = shared->found_through;
      __syncthreads();
      const unsigned long long inside = through.count - before.count;
      if (inside <= kListSize) return CutInRange(low, high, before, goal);
      if (low == high) {
        const unsigned long long mass = Mass(FromSortKey(low));
        unsigned long long r = 1;
        if (!goal.mass) {
          r = goal.value - before.count;
        } else if (mass > 0) {
          r = (goal.value - before.mass + mass - 1) / mass;
        }
        CutAmongEqual(low, r);
        return {before.count + r, before.mass + r * mass};
      }
      const int shift = max(0, 32 - __clz(high - low) - 11);
      Count([&](float value) {
        const uint32_t key = SortKey(value);
        return key < low || key > high ? -1 : static_cast<int>((high - key) >> shift);
      });
      FindFirst(
          kBins, before, goal, [&](int i) { return BinTally(i); }, shared);
      high -= static_cast<uint32_t>(shared->found_index) << shift;
      low = max(low, high - ((1u << shift) - 1));
    }
  }
};

}  // namespace orrery::kernels::cuda

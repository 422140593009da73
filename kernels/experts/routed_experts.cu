#include "kernels/experts/experts_simple.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/linear/stream_product.cuh"
#include "kernels/linear/tiled_product.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kMaxExperts = 512;

// The product of one expert's rows with its weights, for all experts. A tile is (expert, features,
// rows of its list); the tile list is made on the device from the counts.
template <typename Shape, bool kGateUp>
struct ExpertsProblem {
  [[maybe_unused]] static constexpr bool kEarlyWeights = !kGateUp;
  static constexpr bool packs_outputs() { return true; }
  struct Shared {
    int first_tile[kMaxExperts + 1];
  };
  struct Tile {
    int expert, feature;
    int num_features, num_rows;
    const int32_t* slots;
  };

  const bf16* in;
  int64_t in_stride;
  const bf16* w;
  int64_t weight_stride;
  bf16* out;
  int64_t out_stride;
  const int32_t* counts;
  const int32_t* slots;
  int64_t capacity;
  int num_experts, top_k, num_features, feature_tiles;
  bool packed;  // four outputs may be stored at once

  // One warp: each lane counts the tiles of its share of experts, then a prefix sum.
  __device__ void Prepare(Shared* shared, int warp, int lane) const {
    // Routing precedes gate-up. Down follows gate-up, which let it start only after its own wait:
    // the routing is done by then, and down need not wait to know its tiles.
    if (kGateUp) WaitForPredecessor();
    if (warp != 0) return;
    const int share = (num_experts + 31) / 32;
    const int begin = min(lane * share, num_experts), end = min(begin + share, num_experts);
    int tiles = 0;
    for (int e = begin; e < end; ++e) tiles += Tiles(e);
    int before = tiles;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, d);
      if (lane >= d) before += other;
    }
    before -= tiles;
    for (int e = begin; e < end; ++e) {
      shared->first_tile[e] = before;
      before += Tiles(e);
    }
    if (end == num_experts) shared->first_tile[num_experts] = before;
  }
  __device__ int Tiles(int e) const {
    return feature_tiles * ((counts[e] + Shape::kRowsN - 1) / Shape::kRowsN);
  }
  // Large tiles are of one height, so that none is nearly empty.
  static __device__ int TileRows(int count, int row_tiles) {
    if (Shape::kRowsN < 256 || row_tiles > 8) return Shape::kRowsN;
    return ((count + row_tiles - 1) / row_tiles + 15) / 16 * 16;
  }
  __device__ int NumTiles(const Shared& shared) const { return shared.first_tile[num_experts]; }
  __device__ Tile GetTile(const Shared& shared, int t) const {
    int low = 0, high = num_experts;  // first_tile[low] <= t < first_tile[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (shared.first_tile[middle] <= t ? low : high) = middle;
    }
    const int count = counts[low];
    const int row_tiles = (count + Shape::kRowsN - 1) / Shape::kRowsN;
    const int local = t - shared.first_tile[low];
    const int tile_rows = TileRows(count, row_tiles), row = local % row_tiles * tile_rows;
    Tile tile;
    tile.expert = low;
    tile.feature = local / row_tiles * Shape::kFeatures;
    tile.num_features = min(num_features - tile.feature, Shape::kFeatures);
    tile.num_rows = min(count - row, tile_rows);
    tile.slots = slots + low * capacity + row;
    return tile;
  }
  __device__ const bf16* Weights(const Tile& tile, int half) const {
    const int64_t rows = int64_t{num_features} * (Shape::kGated ? 2 : 1);
    return w + (tile.expert * rows + tile.feature + half * num_features) * weight_stride;
  }
  __device__ const bf16* TokenRow(const Tile& tile, int c) const {
    const int slot = tile.slots[c];
    return in + (kGateUp ? slot / top_k : slot) * in_stride;
  }
  __device__ void Store(const Tile& tile, int m, int c, float2 v) const {
    if (m >= tile.num_features) return;
    *reinterpret_cast<uint32_t*>(out + tile.slots[c] * out_stride + tile.feature + m) =
        PackBf16(v.x, v.y);
  }
  __device__ int OutputRow(const Tile& tile, int c) const { return tile.slots[c]; }
  __device__ void StoreFour(const Tile& tile, int m, int row, uint2 four) const {
    if (m >= tile.num_features) return;
    *reinterpret_cast<uint2*>(out + row * out_stride + tile.feature + m) = four;
  }
};

template <typename Shape, bool kGateUp, bool kTiled = false>
void Run(const TensorView& in, const TensorView& w, const ExpertsShape& shape,
         const Routing& routing, const DeviceLimits& limits, const TensorView& out,
         cudaStream_t stream) {
  ExpertsProblem<Shape, kGateUp> problem;
  problem.in = static_cast<const bf16*>(in.data);
  problem.in_stride = in.row_stride;
  problem.w = static_cast<const bf16*>(w.data);
  problem.weight_stride = w.row_stride;
  problem.out = static_cast<bf16*>(out.data);
  problem.out_stride = out.row_stride;
  problem.counts = routing.counts;
  problem.slots = routing.slots;
  problem.capacity = routing.capacity;
  problem.num_experts = static_cast<int>(shape.num_experts);
  problem.top_k = static_cast<int>(shape.top_k);
  problem.num_features = static_cast<int>(out.cols);
  problem.packed = out.cols % 4 == 0 && out.row_stride % 4 == 0;
  problem.feature_tiles = static_cast<int>((out.cols + Shape::kFeatures - 1) / Shape::kFeatures);
  // At most one row tile an expert more than full ones.
  const int64_t num_slots = out.rows;
  const int64_t experts = num_slots < shape.num_experts ? num_slots : shape.num_experts;
  const int64_t max_tiles = problem.feature_tiles * (num_slots / Shape::kRowsN + experts);
  if constexpr (kTiled) {
    LaunchTiledProduct<kGateUp>(problem, w, max_tiles, limits.num_sms, stream);
  } else {
    LaunchStreamProduct<Shape>(problem, in.cols, max_tiles, limits, stream);
  }
}

bool Fits(const TensorView& in, const TensorView& w, const ExpertsShape& shape,
          const TensorView& out) {
  return FitsTensorCores(in, w, out) && out.dtype == DType::kBFloat16 &&
         shape.num_experts <= kMaxExperts;
}

// Tiles by the mean number of an expert's rows: wide enough that nearly every list is one tile, two
// blocks an SM where they fit, so that one's end hides behind the other. Measured (BENCHMARKS.md).
template <bool kGateUp>
struct Tiles {
  static constexpr int kTilesM = kGateUp ? 2 : 1;
  using Few = StreamShape<4, 2, 1, 1, 128, 6, kGateUp>;                   // 128 x 8
  using Some = StreamShape<4 / kTilesM, kTilesM, 1, 2, 256, 2, kGateUp>;  // 64 x 16
  using More = StreamShape<4 / kTilesM, kTilesM, 2, 2, 128, 4, kGateUp>;  // 64 x 32
  using Many = StreamShape<4, 2, 2, 4, 128, 4, kGateUp>;                  // 128 x 64
};
// One row's experts are too few tiles of 128 to share among the SMs.
using GateUpOne = StreamShape<1, 2, 1, 1, 128, 5, true>;

template <bool kGateUp>
void RunBySize(const TensorView& in, const TensorView& w, const ExpertsShape& shape,
               const Routing& routing, const DeviceLimits& limits, const TensorView& out,
               cudaStream_t stream) {
  const int64_t slots = out.rows, experts = shape.num_experts;
  using T = Tiles<kGateUp>;
  if (slots >= 64 * experts && limits.wgmma && in.cols % 64 == 0) {
    return Run<TiledShape<kGateUp>, kGateUp, true>(in, w, shape, routing, limits, out, stream);
  }
  if (slots <= 2 * experts) {
    return Run<typename T::Few, kGateUp>(in, w, shape, routing, limits, out, stream);
  }
  if (slots <= 6 * experts) {
    return Run<typename T::Some, kGateUp>(in, w, shape, routing, limits, out, stream);
  }
  if (slots <= 20 * experts) {
    return Run<typename T::More, kGateUp>(in, w, shape, routing, limits, out, stream);
  }
  Run<typename T::Many, kGateUp>(in, w, shape, routing, limits, out, stream);
}

}  // namespace

void ExpertsGateUp(const TensorView& x, const TensorView& w, const ExpertsShape& shape,
                   const Routing& routing, const DeviceLimits& limits, const TensorView& hidden,
                   cudaStream_t stream) {
  CHECK(x.cols == w.cols && hidden.rows == x.rows * shape.top_k);
  if (x.rows == 0) return;
  if (!Fits(x, w, shape, hidden)) {
    return ExpertsGateUpSimple(x, w, shape, routing, hidden, stream);
  }
  if (2 * hidden.rows * shape.f / GateUpOne::kRowsM <= 4 * limits.num_sms) {
    return Run<GateUpOne, true>(x, w, shape, routing, limits, hidden, stream);
  }
  RunBySize<true>(x, w, shape, routing, limits, hidden, stream);
}

void ExpertsDown(const TensorView& hidden, const TensorView& w, const ExpertsShape& shape,
                 const Routing& routing, const DeviceLimits& limits, const TensorView& y,
                 cudaStream_t stream) {
  CHECK(hidden.cols == w.cols && hidden.rows == y.rows);
  if (hidden.rows == 0) return;
  if (!Fits(hidden, w, shape, y)) {
    return ExpertsDownSimple(hidden, w, shape, routing, y, stream);
  }
  RunBySize<false>(hidden, w, shape, routing, limits, y, stream);
}

}  // namespace orrery::kernels::cuda

#include "kernels/experts/experts_simple.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/experts/routed_experts_plan.h"
#include "kernels/linear/stream_product.cuh"
#include "kernels/linear/tiled_product.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kMaxExperts = 512;

// What every form of the experts' products multiplies.
template <typename Shape>
struct ExpertsMatrices {
  const bf16* in;
  int64_t in_stride;
  const bf16* w;
  int64_t weight_stride;
  bf16* out;
  int64_t out_stride;
  int num_features, feature_tiles;

  // Of expert weights, the first row of a tile's features; half 1: of their ups.
  __device__ const bf16* WeightsOf(int expert, int feature, int half) const {
    const int64_t rows = int64_t{num_features} * (Shape::kGated ? 2 : 1);
    return w + (expert * rows + feature + half * num_features) * weight_stride;
  }
  __device__ void StorePair(int row, int feature, float2 v) const {
    if (feature >= num_features) return;
    *reinterpret_cast<uint32_t*>(out + row * out_stride + feature) = PackBf16(v.x, v.y);
  }
};

// One row of x: every slot is its own list, so that a tile is (slot, features) and all there is to
// read before the weights is the slot's expert.
template <typename Shape, bool kGateUp>
struct OneRowProblem : ExpertsMatrices<Shape> {
  static constexpr bool early_weights() { return !kGateUp; }
  struct Shared {};
  struct Tile {
    int expert, slot, feature;
    int num_features, num_rows;  // none of a slot of padding, which has no expert
  };
  using Matrices = ExpertsMatrices<Shape>;

  const int32_t* experts;
  int num_tiles;

  // As ExpertsProblem's.
  __device__ void Prepare(Shared*, int, int) const {
    if (kGateUp) WaitForPredecessor();
  }
  __device__ int NumTiles(const Shared&) const { return num_tiles; }
  __device__ Tile GetTile(const Shared&, int t) const {
    Tile tile;
    tile.slot = t / this->feature_tiles;
    tile.feature = t % this->feature_tiles * Shape::kFeatures;
    const int expert = __ldcg(experts + tile.slot);  // not from L1: see ExpertsProblem::Count
    tile.expert = max(expert, 0);
    tile.num_rows = expert >= 0 ? 1 : 0;
    tile.num_features = expert >= 0 ? min(this->num_features - tile.feature, Shape::kFeatures) : 0;
    return tile;
  }
  __device__ const bf16* Weights(const Tile& tile, int half) const {
    return Matrices::WeightsOf(tile.expert, tile.feature, half);
  }
  __device__ const bf16* TokenRow(const Tile& tile, int) const {
    return this->in + (kGateUp ? 0 : tile.slot * this->in_stride);
  }
  __device__ void Store(const Tile& tile, int m, int, float2 v) const {
    Matrices::StorePair(tile.slot, tile.feature + m, v);
  }
};

// The product of one expert's rows with its weights, for all experts. A tile is (expert, features,
// rows of its list); the tile list is made on the device from the counts.
template <typename Shape, bool kGateUp>
struct ExpertsProblem : ExpertsMatrices<Shape> {
  static constexpr bool early_weights() { return !kGateUp; }
  static constexpr bool rows_in_order() { return false; }
  struct Shared {
    int first_tile[kMaxExperts + 1];
  };
  struct Tile {
    int expert, feature;
    int num_features, num_rows;
    const int32_t* slots;
  };

  using Matrices = ExpertsMatrices<Shape>;

  const int32_t* counts;
  const int32_t* slots;
  int64_t capacity;
  int num_experts, top_k;
  bool packed;  // eight outputs may be stored at once

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
  // Down reads it before its wait, when L1 may hold what the step before left.
  __device__ int Count(int e) const { return __ldcg(counts + e); }
  __device__ int Tiles(int e) const {
    return this->feature_tiles * ((Count(e) + Shape::kRowsN - 1) / Shape::kRowsN);
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
    const int count = Count(low);
    const int row_tiles = (count + Shape::kRowsN - 1) / Shape::kRowsN;
    const int local = t - shared.first_tile[low];
    const int tile_rows = TileRows(count, row_tiles), row = local % row_tiles * tile_rows;
    Tile tile;
    tile.expert = low;
    tile.feature = local / row_tiles * Shape::kFeatures;
    tile.num_features = min(this->num_features - tile.feature, Shape::kFeatures);
    tile.num_rows = min(count - row, tile_rows);
    tile.slots = slots + low * capacity + row;
    return tile;
  }
  __device__ const bf16* Weights(const Tile& tile, int half) const {
    return Matrices::WeightsOf(tile.expert, tile.feature, half);
  }
  __device__ int TokenIndex(const Tile& tile, int c) const { return tile.slots[c]; }
  __device__ const bf16* TokenAt(int slot) const {
    return this->in + (kGateUp ? slot / top_k : slot) * this->in_stride;
  }
  __device__ const bf16* TokenRow(const Tile& tile, int c) const {
    return TokenAt(TokenIndex(tile, c));
  }
  __device__ void Store(const Tile& tile, int m, int c, float2 v) const {
    Matrices::StorePair(tile.slots[c], tile.feature + m, v);
  }
  __device__ int OutputRow(const Tile& tile, int c) const { return tile.slots[c]; }
  __device__ void StoreEight(const Tile& tile, int m, int row, uint4 eight) const {
    if (m >= tile.num_features) return;
    *reinterpret_cast<uint4*>(this->out + row * this->out_stride + tile.feature + m) = eight;
  }
};

// in and out are x and hidden, or hidden and y.
struct ExpertsArgs {
  const TensorView &in, &w;
  const ExpertsShape& shape;
  const Routing& routing;
  const DeviceLimits& limits;
  const TensorView& out;
  cudaStream_t stream;
};

template <typename Shape>
ExpertsMatrices<Shape> MatricesOf(const ExpertsArgs& a) {
  ExpertsMatrices<Shape> m;
  m.in = static_cast<const bf16*>(a.in.data);
  m.in_stride = a.in.row_stride;
  m.w = static_cast<const bf16*>(a.w.data);
  m.weight_stride = a.w.row_stride;
  m.out = static_cast<bf16*>(a.out.data);
  m.out_stride = a.out.row_stride;
  m.num_features = static_cast<int>(a.out.cols);
  m.feature_tiles = static_cast<int>((a.out.cols + Shape::kFeatures - 1) / Shape::kFeatures);
  return m;
}

template <typename Shape, bool kGateUp>
ExpertsProblem<Shape, kGateUp> MakeProblem(const ExpertsArgs& a) {
  ExpertsProblem<Shape, kGateUp> problem{MatricesOf<Shape>(a)};
  problem.counts = a.routing.counts;
  problem.slots = a.routing.slots;
  problem.capacity = a.routing.capacity;
  problem.num_experts = static_cast<int>(a.shape.num_experts);
  problem.top_k = static_cast<int>(a.shape.top_k);
  problem.packed = a.out.cols % 8 == 0 && a.out.row_stride % 8 == 0;
  return problem;
}

// At most one row tile an expert more than full ones.
template <typename Shape>
int64_t MaxTiles(const ExpertsArgs& a, int feature_tiles) {
  const int64_t slots = a.out.rows;
  const int64_t experts = slots < a.shape.num_experts ? slots : a.shape.num_experts;
  return feature_tiles * (slots / Shape::kRowsN + experts);
}

template <typename Shape, bool kGateUp>
void Run(const ExpertsArgs& a) {
  const auto problem = MakeProblem<Shape, kGateUp>(a);
  LaunchStreamProduct<Shape>(problem, a.in.cols, MaxTiles<Shape>(a, problem.feature_tiles),
                             a.limits, a.stream);
}

template <typename Shape, bool kGateUp>
void RunOneRow(const ExpertsArgs& a) {
  OneRowProblem<Shape, kGateUp> problem{MatricesOf<Shape>(a)};
  problem.experts = a.routing.experts;
  problem.num_tiles = static_cast<int>(a.out.rows) * problem.feature_tiles;
  LaunchStreamProduct<Shape>(problem, a.in.cols, problem.num_tiles, a.limits, a.stream);
}

// By slots where they are one row's, and have the same bits.
template <typename Shape, bool kGateUp>
void RunFew(const ExpertsArgs& a) {
  if (a.out.rows == a.shape.top_k) return RunOneRow<Shape, kGateUp>(a);
  Run<Shape, kGateUp>(a);
}

template <typename Shape, bool kGateUp>
void RunTiled(const ExpertsArgs& a) {
  const auto problem = MakeProblem<Shape, kGateUp>(a);
  LaunchTiledProduct<Shape>(problem, a.w, a.in, MaxTiles<Shape>(a, problem.feature_tiles),
                            a.limits.num_sms, a.stream);
}

bool Fits(const TensorView& in, const TensorView& w, const ExpertsShape& shape,
          const TensorView& out) {
  return FitsTensorCores(in, w, out) && out.dtype == DType::kBFloat16 &&
         shape.num_experts <= kMaxExperts;
}

// The shapes of routed_experts_plan.h: two blocks an SM where they fit, so that one's end hides
// behind the other. Measured (BENCHMARKS.md).
template <bool kGateUp>
struct Tiles {
  static constexpr int kTilesM = kGateUp ? 2 : 1;
  // Four an SM: down's first lies beside three of gate-up's, with its weights under way.
  using Thin = StreamShape<2 / kTilesM, kTilesM, 1, 1, 128, 5, kGateUp>;
  using Few = StreamShape<4, 2, 1, 1, 128, 6, kGateUp>;
  using Some = StreamShape<4 / kTilesM, kTilesM, 1, 2, 256, 2, kGateUp>;
  using More = StreamShape<4 / kTilesM, kTilesM, 2, 2, 128, 4, kGateUp>;
  using Many = StreamShape<4, 2, 2, 4, 128, 4, kGateUp>;
};

template <bool kGateUp>
void RunPlanned(const ExpertsArgs& a) {
  using T = Tiles<kGateUp>;
  const GroupedProduct product{a.out.rows, a.shape.num_experts, a.out.cols, a.in.cols, kGateUp};
  switch (PlanGrouped(product, a.limits)) {
    case GroupedTile::kThin:
      return RunFew<typename T::Thin, kGateUp>(a);
    case GroupedTile::kFew:
      return RunFew<typename T::Few, kGateUp>(a);
    case GroupedTile::kSome:
      return Run<typename T::Some, kGateUp>(a);
    case GroupedTile::kMore:
      return Run<typename T::More, kGateUp>(a);
    case GroupedTile::kMany:
      return Run<typename T::Many, kGateUp>(a);
    case GroupedTile::kBlock:
      return RunTiled<FewRows<kGateUp>, kGateUp>(a);
    case GroupedTile::kCluster:
      return RunTiled<ManyRows<kGateUp>, kGateUp>(a);
  }
}

}  // namespace

void ExpertsGateUp(const TensorView& x, const TensorView& w, const ExpertsShape& shape,
                   const Routing& routing, const DeviceLimits& limits, const TensorView& hidden,
                   cudaStream_t stream) {
  CHECK(x.cols == w.cols && hidden.rows == x.rows * shape.top_k);
  if (x.rows == 0) return;
  if (Fits(x, w, shape, hidden)) {
    return RunPlanned<true>({x, w, shape, routing, limits, hidden, stream});
  }
  ExpertsGateUpSimple(x, w, shape, routing, hidden, stream);
}

void ExpertsDown(const TensorView& hidden, const TensorView& w, const ExpertsShape& shape,
                 const Routing& routing, const DeviceLimits& limits, const TensorView& y,
                 cudaStream_t stream) {
  CHECK(hidden.cols == w.cols && hidden.rows == y.rows);
  if (hidden.rows == 0) return;
  if (Fits(hidden, w, shape, y)) {
    return RunPlanned<false>({hidden, w, shape, routing, limits, y, stream});
  }
  ExpertsDownSimple(hidden, w, shape, routing, y, stream);
}

}  // namespace orrery::kernels::cuda

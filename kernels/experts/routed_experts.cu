#include "kernels/experts/expert_tiles.cuh"
#include "kernels/experts/experts_simple.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/experts/routed_experts_plan.h"
#include "kernels/linear/stream_product.cuh"
#include "kernels/linear/tiled_product.cuh"

namespace orrery::kernels::cuda {
namespace {

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
//
// Where it guesses, the list begins with the first rows of the first experts, all their features,
// whatever the counts: a block knows its first tile, and brings its weights, while routing is under
// way. A guessed tile may turn out to have no rows.
template <typename Shape, bool kGateUp, bool kGuesses = false>
struct ExpertsProblem : ExpertsMatrices<Shape> {
  static constexpr bool early_weights() { return !kGateUp; }
  static constexpr bool guesses() { return kGuesses; }
  static constexpr bool rows_in_order() { return false; }
  using Shared = ExpertTiles;
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
  int guessed_experts;
  bool packed;  // eight outputs may be stored at once

  __device__ void Prepare(Shared* shared, int warp, int lane) const {
    // Routing precedes gate-up. Down follows gate-up, which let it start only after its own wait:
    // the routing is done by then, and down need not wait to know its tiles.
    if (kGateUp) WaitForPredecessor();
    if (warp != 0) return;
    shared->Make(num_experts, lane, [this](int e) {
      return this->feature_tiles * (RowTiles(e, Count(e)) - (IsGuessed(e) ? 1 : 0));
    });
  }
  // Down reads it before its wait, when L1 may hold what the step before left.
  __device__ int Count(int e) const { return __ldcg(counts + e); }
  __device__ bool IsGuessed(int e) const { return kGuesses && e < guessed_experts; }
  __device__ int NumGuessed() const { return kGuesses ? guessed_experts * this->feature_tiles : 0; }
  __device__ int RowTiles(int e, int count) const {
    const int row_tiles = (count + Shape::kRowsN - 1) / Shape::kRowsN;
    return IsGuessed(e) ? max(row_tiles, 1) : row_tiles;
  }
  // Large tiles are of one height, so that none is nearly empty.
  static __device__ int TileRows(int count, int row_tiles) {
    if (Shape::kRowsN < 256 || row_tiles > 8) return Shape::kRowsN;
    return ((count + row_tiles - 1) / row_tiles + 15) / 16 * 16;
  }
  __device__ int NumTiles(const Shared& shared) const {
    return NumGuessed() + shared.first[num_experts];
  }
  // Without its rows, which are not known yet.
  __device__ Tile GuessedTile(int t) const {
    Tile tile;
    tile.expert = t / this->feature_tiles;
    tile.feature = t % this->feature_tiles * Shape::kFeatures;
    return tile;
  }
  __device__ Tile GetTile(const Shared& shared, int t) const {
    const int guessed = NumGuessed();
    const bool is_guessed = t < guessed;
    const int e = is_guessed ? t / this->feature_tiles : shared.ExpertOf(t - guessed, num_experts);
    const int count = Count(e), row_tiles = RowTiles(e, count);
    int feature_tile = t % this->feature_tiles, row_tile = 0;
    if (!is_guessed) {
      const int local = t - guessed - shared.first[e], before = IsGuessed(e) ? 1 : 0;
      feature_tile = local / (row_tiles - before);
      row_tile = before + local % (row_tiles - before);
    }
    const int tile_rows = TileRows(count, row_tiles), row = row_tile * tile_rows;
    Tile tile;
    tile.expert = e;
    tile.feature = feature_tile * Shape::kFeatures;
    tile.num_features = min(this->num_features - tile.feature, Shape::kFeatures);
    tile.num_rows = min(count - row, tile_rows);
    tile.slots = slots + e * capacity + row;
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

template <typename Shape, bool kGateUp, bool kGuesses = false>
ExpertsProblem<Shape, kGateUp, kGuesses> MakeProblem(const ExpertsArgs& a) {
  ExpertsProblem<Shape, kGateUp, kGuesses> problem{MatricesOf<Shape>(a)};
  problem.counts = a.routing.counts;
  problem.slots = a.routing.slots;
  problem.capacity = a.routing.capacity;
  problem.num_experts = static_cast<int>(a.shape.num_experts);
  problem.top_k = static_cast<int>(a.shape.top_k);
  if (kGuesses) {
    problem.guessed_experts =
        GuessedExperts(a.out.rows, a.shape.num_experts, problem.feature_tiles, a.limits);
  }
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
void RunOneOrFew(const ExpertsArgs& a) {
  if (a.out.rows == a.shape.top_k) return RunOneRow<Shape, kGateUp>(a);
  Run<Shape, kGateUp>(a);
}

template <typename Shape, bool kGateUp, bool kGuesses = false>
void RunTiled(const ExpertsArgs& a) {
  const auto problem = MakeProblem<Shape, kGateUp, kGuesses>(a);
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
struct StreamShapes {
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
  using S = StreamShapes<kGateUp>;
  const GroupedProduct product{a.out.rows, a.shape.num_experts, a.out.cols, a.in.cols, kGateUp};
  switch (PlanGrouped(product, a.limits)) {
    case GroupedTile::kThin:
      return RunOneOrFew<typename S::Thin, kGateUp>(a);
    case GroupedTile::kFew:
      return RunOneOrFew<typename S::Few, kGateUp>(a);
    case GroupedTile::kSome:
      return Run<typename S::Some, kGateUp>(a);
    case GroupedTile::kMore:
      return Run<typename S::More, kGateUp>(a);
    case GroupedTile::kMany:
      return Run<typename S::Many, kGateUp>(a);
    case GroupedTile::kBlock:
      return RunTiled<FewRows<kGateUp>, kGateUp, kGateUp>(a);
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

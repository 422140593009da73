#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/linear_simple.h"
#include "kernels/linear/stream_product.cuh"
#include "kernels/linear/tiled_product.cuh"

namespace orrery::kernels::cuda {
namespace {

template <typename Shape>
struct DenseProblem {
  static constexpr bool early_weights() { return true; }
  static constexpr bool guesses() { return false; }
  static constexpr bool rows_in_order() { return true; }
  struct Shared {};
  struct Tile {
    int64_t feature, row;  // the first of each
    int num_features, num_rows;
  };

  const bf16* x;
  int64_t x_stride, num_rows;
  const bf16* w;
  int64_t weight_stride, num_features;
  const bf16* bias;
  void* out;
  int64_t out_stride;
  bool out_float;
  bool packed;  // eight outputs may be stored at once
  int row_tiles, feature_tiles;

  __device__ void Prepare(Shared*, int, int) const {}
  __device__ int NumTiles(const Shared&) const { return row_tiles * feature_tiles; }
  __device__ Tile GetTile(const Shared&, int t) const {
    Tile tile;
    tile.feature = static_cast<int64_t>(t / row_tiles) * Shape::kFeatures;
    tile.row = static_cast<int64_t>(t % row_tiles) * Shape::kRowsN;
    tile.num_features =
        static_cast<int>(min(num_features - tile.feature, int64_t{Shape::kFeatures}));
    tile.num_rows = static_cast<int>(min(num_rows - tile.row, int64_t{Shape::kRowsN}));
    return tile;
  }
  __device__ const bf16* Weights(const Tile& tile, int half) const {
    return w + (tile.feature + half * num_features) * weight_stride;
  }
  __device__ int FirstRow(const Tile& tile) const { return static_cast<int>(tile.row); }
  __device__ const bf16* TokenRow(const Tile& tile, int c) const {
    return x + (tile.row + c) * x_stride;
  }
  __device__ int OutputRow(const Tile& tile, int c) const { return FirstRow(tile) + c; }
  __device__ void StoreEight(const Tile& tile, int m, int row, uint4 eight) const {
    if (m >= tile.num_features) return;
    *reinterpret_cast<uint4*>(static_cast<bf16*>(out) + row * out_stride + tile.feature + m) =
        eight;
  }
  __device__ void Store(const Tile& tile, int m, int c, float2 v) const {
    if (m >= tile.num_features) return;
    const int64_t feature = tile.feature + m;
    if (bias != nullptr) {
      const float2 b = UnpackBf16(*reinterpret_cast<const uint32_t*>(bias + feature));
      v.x += b.x;
      v.y += b.y;
    }
    const int64_t at = (tile.row + c) * out_stride + feature;
    if (out_float) {
      *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = v;
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<bf16*>(out) + at) = PackBf16(v.x, v.y);
    }
  }
};

template <typename Shape>
DenseProblem<Shape> MakeProblem(const TensorView& x, const TensorView& w, const TensorView& bias,
                                const TensorView& out) {
  DenseProblem<Shape> problem;
  problem.x = static_cast<const bf16*>(x.data);
  problem.x_stride = x.row_stride;
  problem.num_rows = x.rows;
  problem.w = static_cast<const bf16*>(w.data);
  problem.weight_stride = w.row_stride;
  problem.num_features = out.cols;
  problem.bias = static_cast<const bf16*>(bias.data);
  problem.out = out.data;
  problem.out_stride = out.row_stride;
  problem.out_float = out.dtype == DType::kFloat32;
  problem.packed =
      !problem.out_float && problem.bias == nullptr && out.cols % 8 == 0 && out.row_stride % 8 == 0;
  problem.row_tiles = static_cast<int>((x.rows + Shape::kRowsN - 1) / Shape::kRowsN);
  problem.feature_tiles = static_cast<int>((out.cols + Shape::kFeatures - 1) / Shape::kFeatures);
  return problem;
}

template <typename Shape>
void Run(const TensorView& x, const TensorView& w, const TensorView& bias,
         const DeviceLimits& limits, const TensorView& out, cudaStream_t stream) {
  const DenseProblem<Shape> problem = MakeProblem<Shape>(x, w, bias, out);
  LaunchStreamProduct<Shape>(problem, x.cols, int64_t{problem.row_tiles} * problem.feature_tiles,
                             limits, stream);
}

template <bool kGated>
void RunTiled(const TensorView& x, const TensorView& w, const TensorView& bias,
              const DeviceLimits& limits, const TensorView& out, cudaStream_t stream) {
  const auto problem = MakeProblem<ManyRows<kGated>>(x, w, bias, out);
  LaunchTiledProduct<ManyRows<kGated>>(
      problem, w, x, int64_t{problem.row_tiles} * problem.feature_tiles, limits.num_sms, stream);
}

static_assert(ManyRows<false>::kFeatures == kTiledFeatures &&
              ManyRows<true>::kFeatures == kTiledFeatures / 2 &&
              ManyRows<true>::kRowsN == kTiledRows && ManyRows<true>::kSlab == 64 &&
              ManyRows<true>::kBlocks == 2);

// The shapes of linear_plan.h.
using Thin = StreamShape<1, 1, 1, 1, 256, 4>;
using ThinSplit = StreamShape<1, 1, 1, 1, 256, 4, false, 4>;
using GatedThinSplit = StreamShape<1, 2, 1, 1, 256, 4, true, 4>;
using Low = StreamShape<3, 1, 2, 4, 128, 5>;
using Square = StreamShape<4, 1, 2, 4, 128, 6>;
using Tall = StreamShape<4, 2, 1, 1, 128, 6>;
using Wide = StreamShape<4, 2, 2, 4, 128, 4>;
template <typename Shape, LinearTile kTile>
constexpr bool kIsPlanned = Shape::kRowsM == SizeOf(kTile).weight_rows&& Shape::kRowsN ==
                            SizeOf(kTile).rows;
static_assert(kIsPlanned<Thin, LinearTile::kThin> && kIsPlanned<ThinSplit, LinearTile::kThin> &&
              kIsPlanned<Low, LinearTile::kLow> && kIsPlanned<Square, LinearTile::kSquare> &&
              kIsPlanned<Tall, LinearTile::kTall> && kIsPlanned<Wide, LinearTile::kWide>);
using GatedThin = StreamShape<1, 2, 1, 1, 256, 4, true>;
using GatedSquare = StreamShape<4, 2, 2, 4, 128, 4, true>;

}  // namespace

void Linear(const TensorView& x, const TensorView& w, const TensorView& bias,
            const DeviceLimits& limits, const TensorView& out, cudaStream_t stream,
            Numerics numerics) {
  CHECK(x.cols == w.cols && out.cols == w.rows && out.rows == x.rows);
  if (x.rows == 0) return;
  const bool bias_aligned = reinterpret_cast<uintptr_t>(bias.data) % 16 == 0;
  if (!FitsTensorCores(x, w, out) || !bias_aligned) return LinearSimple(x, w, bias, out, stream);
  if (TilesPay(x.rows, out.cols, x.cols, /*gated=*/false, limits)) {
    return RunTiled<false>(x, w, bias, limits, out, stream);
  }
  switch (PlanLinear(x.rows, w.rows, limits)) {
    case LinearTile::kThin:
      if (numerics == Numerics::kFast) return Run<ThinSplit>(x, w, bias, limits, out, stream);
      return Run<Thin>(x, w, bias, limits, out, stream);
    case LinearTile::kLow:
      return Run<Low>(x, w, bias, limits, out, stream);
    case LinearTile::kSquare:
      return Run<Square>(x, w, bias, limits, out, stream);
    case LinearTile::kTall:
      return Run<Tall>(x, w, bias, limits, out, stream);
    case LinearTile::kWide:
      return Run<Wide>(x, w, bias, limits, out, stream);
  }
}

void LinearSwiGlu(const TensorView& x, const TensorView& w, const DeviceLimits& limits,
                  const TensorView& out, cudaStream_t stream, Numerics numerics) {
  CHECK(x.cols == w.cols && 2 * out.cols == w.rows && out.rows == x.rows);
  if (x.rows == 0) return;
  if (!FitsTensorCores(x, w, out) || out.dtype != DType::kBFloat16) {
    return LinearSwiGluSimple(x, w, out, stream);
  }
  if (TilesPay(x.rows, out.cols, x.cols, /*gated=*/true, limits)) {
    return RunTiled<true>(x, w, {}, limits, out, stream);
  }
  if (x.rows <= 8 && numerics == Numerics::kFast) {
    return Run<GatedThinSplit>(x, w, {}, limits, out, stream);
  }
  if (x.rows <= 8) return Run<GatedThin>(x, w, {}, limits, out, stream);
  Run<GatedSquare>(x, w, {}, limits, out, stream);
}

}  // namespace orrery::kernels::cuda

#include "kernels/linear/linear_plan.h"

namespace orrery::kernels::cuda {

bool TilesPay(int64_t rows, int64_t features, int64_t k, bool gated, const DeviceLimits& limits) {
  // What tiled_product.cuh has; linear.cu asserts it.
  constexpr int64_t kClusterSms = 2, kSlab = 64;
  if (!limits.wgmma || rows < 192 || k % kSlab != 0) return false;
  const int64_t tile_features = gated ? kTiledFeatures / 2 : kTiledFeatures;
  const int64_t tiles =
      ((features + tile_features - 1) / tile_features) * ((rows + kTiledRows - 1) / kTiledRows);
  const int64_t clusters = limits.num_sms / kClusterSms;
  // Microseconds, as measured on an H200 (kernels_bench linear; kernels/BENCHMARKS.md).
  const double waves = static_cast<double>((tiles + clusters - 1) / clusters);
  const double tiled = waves * (6 + 0.8 * static_cast<double>(k / kSlab));
  const double operations = 2.0 * static_cast<double>(rows * features * k) * (gated ? 2 : 1);
  const double per_microsecond = 190e6 / 132 * limits.num_sms;
  return tiled < 6 + operations / per_microsecond;
}

bool LibraryPays(int64_t rows, int64_t features, const DeviceLimits& limits) {
  const int64_t tiles = (features + SizeOf(LinearTile::kThin).weight_rows - 1) /
                        SizeOf(LinearTile::kThin).weight_rows;
  return rows > 8 || (rows > 4 && tiles > limits.num_sms);  // kernels_bench linear on an H200
}

LinearTile PlanLinear(int64_t rows, int64_t features, const DeviceLimits& limits) {
  const auto fills = [&](LinearTile tile) {
    const LinearTileSize size = SizeOf(tile);
    const int64_t tiles = ((features + size.weight_rows - 1) / size.weight_rows) *
                          ((rows + size.rows - 1) / size.rows);
    return tiles >= 2 * limits.num_sms;
  };
  if (rows <= 8) return fills(LinearTile::kTall) ? LinearTile::kTall : LinearTile::kThin;
  if (fills(LinearTile::kWide)) return LinearTile::kWide;
  if (rows <= 32 || (rows <= 64 && !fills(LinearTile::kSquare))) return LinearTile::kLow;
  return LinearTile::kSquare;
}

}  // namespace orrery::kernels::cuda

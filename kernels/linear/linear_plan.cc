#include "kernels/linear/linear_plan.h"

namespace orrery::kernels::cuda {

LinearTileSize SizeOf(LinearTile tile) {
  switch (tile) {
    case LinearTile::kThin:
      return {16, 8};
    case LinearTile::kLow:
      return {32, 32};
    case LinearTile::kSquare:
      return {64, 64};
    case LinearTile::kTall:
      return {128, 8};
    case LinearTile::kWide:
      return {128, 64};
  }
  return {};
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
  if (rows <= 32 || !fills(LinearTile::kSquare)) {
    return rows <= 64 ? LinearTile::kLow : LinearTile::kSquare;
  }
  return LinearTile::kSquare;
}

}  // namespace orrery::kernels::cuda

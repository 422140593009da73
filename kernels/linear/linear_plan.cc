#include "kernels/linear/linear_plan.h"

namespace orrery::kernels::cuda {

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

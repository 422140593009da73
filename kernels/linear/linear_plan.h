// Which tile of the streaming product serves a dense layer: a pure function of its shape and the
// GPU. No choice changes a bit of the result.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_limits.h"

namespace orrery::kernels::cuda {

// A tile of the tiled product: weight rows (of a gated layer half are gates) by rows of x.
inline constexpr int64_t kTiledFeatures = 256, kTiledRows = 320;

enum class LinearTile : uint8_t {
  kThin,    // 16 weight rows x 8 rows of x: many small blocks, for narrow layers
  kLow,     // 48 x 64
  kSquare,  // 64 x 64
  kTall,    // 128 x 8: long streams, for the head
  kWide,    // 128 x 64
};

struct LinearTileSize {
  int64_t weight_rows, rows;
};
constexpr LinearTileSize SizeOf(LinearTile tile) {
  switch (tile) {
    case LinearTile::kThin:
      return {16, 8};
    case LinearTile::kLow:
      return {48, 64};
    case LinearTile::kSquare:
      return {64, 64};
    case LinearTile::kTall:
      return {128, 8};
    case LinearTile::kWide:
      return {128, 64};
  }
  return {};
}

// Whether the tiled product (tiled_product.cuh) is faster than the streaming one for so many rows
// of x, outputs and columns of x. It has the higher rate, but one tile keeps two SMs busy for as
// long as k takes: small layers leave most of the GPU idle.
bool TilesPay(int64_t rows, int64_t features, int64_t k, bool gated, const DeviceLimits& limits);

// Fast numerics: whether cuBLASLt is faster than the streaming product with its split over k. That
// one is best for a single row; with more it reads them again for each of a block's tiles, which
// costs where a block has several.
bool LibraryPays(int64_t rows, int64_t features, const DeviceLimits& limits);

// The tallest tile that still gives every SM work: fewer rows of x are read again.
LinearTile PlanLinear(int64_t rows, int64_t features, const DeviceLimits& limits);

}  // namespace orrery::kernels::cuda

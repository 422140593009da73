// Which tiles serve the experts' products (routed_experts_cuda.h): pure functions of their shape
// and the GPU. No choice changes a bit of the result.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_limits.h"

namespace orrery::kernels::cuda {

// Experts of a layer, at most: what tables in shared memory hold.
inline constexpr int kMaxExperts = 512;

// Weight rows (of gate-up half are gates) by rows of x; an expert's rows are its list.
enum class GroupedTile : uint8_t {
  kThin,     // 32 x 8: one row's experts are too few larger tiles for all SMs
  kFew,      // 128 x 8
  kSome,     // 64 x 16
  kMore,     // 64 x 32
  kMany,     // 128 x 64
  kBlock,    // 256 x 64 by warpgroup products: the weights' stream is the cost
  kCluster,  // 256 x 320 by two SMs: the products are
};

struct GroupedProduct {
  int64_t slots = 0, num_experts = 0;  // slots: rows of all experts
  int64_t features = 0;                // outputs of an expert
  int64_t k = 0;
  bool gated = false;  // gate and up
};

// Tiles by the mean number of an expert's rows, wide enough that nearly every list is one tile; all
// SMs must get work.
GroupedTile PlanGrouped(const GroupedProduct& product, const DeviceLimits& limits);

// For tiles of one block: the experts whose first tiles blocks begin before routing is done, so
// that every block has one. None where many experts would turn out to have no rows, whose weights
// were brought for nothing.
int64_t GuessedExperts(int64_t slots, int64_t num_experts, int64_t feature_tiles,
                       const DeviceLimits& limits);

}  // namespace orrery::kernels::cuda

// How deep the streaming product's ring of stages is on a GPU (stream_product.cuh): a pure function
// of the stage and the GPU. Depth changes no bit of the result.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_limits.h"

namespace orrery::kernels::cuda {

// A shape's ring (stream_product.cuh) as deep as it was tuned.
struct StreamRing {
  int stages = 0;           // on an H200
  int64_t stage_bytes = 0;  // with its two barriers
  int64_t bytes() const { return stages * stage_bytes; }
};

struct StreamPlan {
  int stages = 0;
  int64_t shared_bytes = 0;  // of the ring, a block
};

// A GPU that needs n times an H200's bytes in flight to saturate its memory gets a ring up to n
// times as deep, as far as the shared memory goes: where a tuned ring leaves room for one block an
// SM, that is all that a block may have, the oversized mode included; where several blocks share an
// SM, as much as leaves the same number of them. static_bytes: what the kernel has besides.
StreamPlan PlanStream(const StreamRing& ring, int64_t static_bytes, const DeviceLimits& limits);

// The same where each SM has one tile at most, of `steps` stages in all: as many of them as two
// thirds of an SM hold (and no fewer than above) are under way while the predecessor still works,
// beside whose thread blocks this one lies.
StreamPlan PlanLoneTiles(const StreamRing& ring, int64_t static_bytes, int64_t steps,
                         const DeviceLimits& limits);

}  // namespace orrery::kernels::cuda

#include "kernels/linear/stream_plan.h"

#include <algorithm>

#include "kernels/cuda/block_residency.h"

namespace orrery::kernels::cuda {

StreamPlan PlanStream(const StreamRing& ring, int64_t static_bytes, const DeviceLimits& limits) {
  const DeviceLimits tuned_on = H200Limits();
  const int64_t blocks = std::max<int64_t>(BlocksPerSm(ring.bytes() + static_bytes, tuned_on), 1);
  const int64_t room = blocks == 1
                           ? limits.max_shared_bytes()
                           : std::min(limits.shared_bytes_per_sm / blocks - kReservedSharedBytes,
                                      limits.shared_bytes_per_block);
  const int64_t wanted =
      ring.stages * limits.bytes_in_flight_per_sm / tuned_on.bytes_in_flight_per_sm;
  const int64_t fits = (room - static_bytes) / ring.stage_bytes;
  // Never shallower than tuned: a block that does not fit is refused where it is launched.
  const int64_t stages = std::max<int64_t>(std::min(wanted, fits), ring.stages);
  return {static_cast<int>(stages), stages * ring.stage_bytes};
}

StreamPlan PlanLoneTiles(const StreamRing& ring, int64_t static_bytes, int64_t steps,
                         const DeviceLimits& limits) {
  const int64_t usual = PlanStream(ring, static_bytes, limits).stages;
  const int64_t room = std::min(2 * limits.shared_bytes_per_sm / 3, limits.shared_bytes_per_block);
  const int64_t fits = (room - kReservedSharedBytes - static_bytes) / ring.stage_bytes;
  const int64_t stages = std::max(std::min(steps, fits), usual);
  return {static_cast<int>(stages), stages * ring.stage_bytes};
}

}  // namespace orrery::kernels::cuda

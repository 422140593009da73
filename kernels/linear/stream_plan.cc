#include "kernels/linear/stream_plan.h"

#include <algorithm>

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kReservedBytes = 1024;  // of a block's shared memory, by the driver

// Blocks of so many bytes an SM, by shared memory alone.
int64_t BlocksPerSm(int64_t bytes, const DeviceLimits& limits) {
  return std::max<int64_t>(limits.shared_bytes_per_sm / (bytes + kReservedBytes), 1);
}

}  // namespace

StreamPlan PlanStream(const StreamRing& ring, int64_t static_bytes, const DeviceLimits& limits) {
  const DeviceLimits tuned_on = H200Limits();
  const int64_t blocks = BlocksPerSm(ring.bytes() + static_bytes, tuned_on);
  const int64_t room = blocks == 1 ? limits.max_shared_bytes()
                                   : std::min(limits.shared_bytes_per_sm / blocks - kReservedBytes,
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
  const int64_t fits = (room - kReservedBytes - static_bytes) / ring.stage_bytes;
  const int64_t stages = std::max(std::min(steps, fits), usual);
  return {static_cast<int>(stages), stages * ring.stage_bytes};
}

}  // namespace orrery::kernels::cuda

// How many thread blocks share an SM, by their shared memory alone: for launch plans.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_limits.h"

namespace orrery::kernels::cuda {

inline constexpr int64_t kReservedSharedBytes = 1024;  // by the driver, of every block's

// Blocks that ask for so many bytes, their static shared memory included; 0: not even one.
inline int64_t BlocksPerSm(int64_t shared_bytes, const DeviceLimits& limits) {
  return limits.shared_bytes_per_sm / (shared_bytes + kReservedSharedBytes);
}

}  // namespace orrery::kernels::cuda

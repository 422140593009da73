// The GPU at hand.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cuda/device_limits.h"

namespace orrery::kernels {

// How many GPUs the driver shows; 0 without a driver or with one that is too old.
int NumDevices();
// FailedPrecondition, with the reason and the fix, where device `index` cannot be used.
absl::StatusOr<DeviceLimits> QueryDeviceLimits(int index);

// Memory of the current device now, whoever took it.
struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;
  int64_t taken_bytes() const { return total_bytes - free_bytes; }
};
DeviceMemory QueryDeviceMemory();

}  // namespace orrery::kernels

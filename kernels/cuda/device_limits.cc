#include "kernels/cuda/device_limits.h"

namespace orrery::kernels {

DeviceLimits H200Limits() {
  DeviceLimits limits;
  limits.architecture = 90;
  limits.num_sms = 132;
  limits.shared_bytes_per_block = 227 << 10;
  limits.shared_bytes_per_sm = 228 << 10;
  limits.l2_bytes = 60 << 20;
  limits.memory_bytes = int64_t{141} * 1000 * 1000 * 1000;
  limits.bytes_in_flight_per_sm = 48 << 10;
  limits.wgmma = true;
  return limits;
}

DeviceLimits B200Limits() {
  DeviceLimits limits = H200Limits();
  limits.architecture = 100;
  limits.num_sms = 148;
  limits.l2_bytes = 126 << 20;
  limits.memory_bytes = int64_t{180} * 1000 * 1000 * 1000;
  limits.memory_domains = 2;
  limits.bytes_in_flight_per_sm = 64 << 10;
  limits.wgmma = false;
  return limits;
}

DeviceLimits RubinLimits() {
  DeviceLimits limits = B200Limits();
  limits.architecture = 107;
  limits.num_sms = 212;
  limits.oversized_shared_bytes = 334848;
  limits.memory_bytes = int64_t{288} * 1000 * 1000 * 1000;
  limits.bytes_in_flight_per_sm = 128 << 10;
  return limits;
}

}  // namespace orrery::kernels

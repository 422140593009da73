// What a launch plan may know of a GPU: plain data, so that plans are pure functions tested without
// one. QueryDeviceLimits (device.h) reads the same from the driver.
#pragma once

#include <cstdint>

namespace orrery::kernels {

struct DeviceLimits {
  int architecture = 90;  // 10 * major + minor compute capability
  int num_sms = 0;
  int64_t shared_bytes_per_block = 0;  // a block may ask for (opt-in)
  int64_t shared_bytes_per_sm = 0;
  int64_t oversized_shared_bytes = 0;  // a block may ask for at the cost of its L1; 0: no such mode
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;              // when it was asked; 0 in tables
  int memory_domains = 1;              // parts of the device memory with SMs of their own
  int64_t bytes_in_flight_per_sm = 0;  // that saturate the memory
  bool wgmma = false;                  // sm_90a warpgroup products

  int64_t max_shared_bytes() const {
    return oversized_shared_bytes > shared_bytes_per_block ? oversized_shared_bytes
                                                           : shared_bytes_per_block;
  }
};

// By the vendor's documents; memory_bytes as sold.
DeviceLimits H200Limits();
DeviceLimits B200Limits();
DeviceLimits RubinLimits();

}  // namespace orrery::kernels

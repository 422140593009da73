// Pages of the GPU at hand: its driver's virtual memory management. The driver's functions are
// found at run time, so that programs start without a driver, too. Errors end the process.
#pragma once

#include <memory>

#include "kernels/cuda/page_pool.h"

namespace orrery::kernels::cuda {

// Of the current device. REQUIRES: there is one.
std::shared_ptr<PagePool> MakeDevicePool();
// Dry: nothing is taken.
std::shared_ptr<PagePool> MakeCountingPool();

}  // namespace orrery::kernels::cuda

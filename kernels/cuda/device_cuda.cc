#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device.h"
#include "orchestrator/base/status.h"

namespace orrery::kernels {
namespace {

int64_t Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, index) == cudaSuccess ? value : 0;
}

}  // namespace

int NumDevices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<DeviceLimits> QueryDeviceLimits(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return Precondition("no GPU driver, or one older than CUDA {}.{} needs: install a newer one",
                        CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error != cudaSuccess || count == 0) {
    return Precondition("no GPU: {}", cudaGetErrorString(error));
  }
  if (index < 0 || index >= count) {
    return Precondition("GPU {} was asked for, there are {}", index, count);
  }
  DeviceLimits limits;
  limits.architecture = static_cast<int>(10 * Attribute(cudaDevAttrComputeCapabilityMajor, index) +
                                         Attribute(cudaDevAttrComputeCapabilityMinor, index));
  limits.num_sms = static_cast<int>(Attribute(cudaDevAttrMultiProcessorCount, index));
  limits.shared_bytes_per_block = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  limits.shared_bytes_per_sm = Attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
  limits.l2_bytes = Attribute(cudaDevAttrL2CacheSize, index);
  // What no attribute of this toolkit tells comes from the tables.
  const DeviceLimits table = limits.architecture >= 107   ? RubinLimits()
                             : limits.architecture >= 100 ? B200Limits()
                                                          : H200Limits();
  limits.oversized_shared_bytes = table.oversized_shared_bytes;
  limits.memory_domains = table.memory_domains;
  limits.bytes_in_flight_per_sm = table.bytes_in_flight_per_sm;
  limits.wgmma = limits.architecture == 90;
  size_t free_bytes = 0, total_bytes = 0;
  int current = 0;
  cudaGetDevice(&current);
  cudaSetDevice(index);
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    cudaSetDevice(current);
    return Precondition("GPU {} does not answer: {}", index,
                        cudaGetErrorString(cudaGetLastError()));
  }
  cudaSetDevice(current);
  limits.memory_bytes = static_cast<int64_t>(total_bytes);
  limits.free_bytes = static_cast<int64_t>(free_bytes);
  if (limits.architecture < 90) {
    return Precondition("GPU {} has compute capability {}.{}; 9.0 (Hopper) or newer is needed",
                        index, limits.architecture / 10, limits.architecture % 10);
  }
  return limits;
}

DeviceMemory QueryDeviceMemory() {
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

}  // namespace orrery::kernels

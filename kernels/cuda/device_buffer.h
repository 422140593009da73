// Memory of the GPU, and pinned memory of the host that copies to and from it do not wait for.
// Owned by one object, taken at construction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/cuda_check.h"

namespace orrery::kernels::cuda {

// take(void**, size_t) and give_back(void*): the kind of memory.
template <auto take, auto give_back>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) CUDA_CHECK(take(&data_, static_cast<size_t>(bytes)));
  }
  ~Buffer() {
    if (data_ != nullptr) give_back(data_);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data() + byte_offset);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

namespace internal {
// cudaMalloc and cudaMallocHost have C++ overloads: these are the ones of the C interface.
inline cudaError_t TakeDevice(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
inline cudaError_t TakePinned(void** data, size_t bytes) { return cudaMallocHost(data, bytes); }
}  // namespace internal

using DeviceBuffer = Buffer<&internal::TakeDevice, &cudaFree>;
using PinnedBuffer = Buffer<&internal::TakePinned, &cudaFreeHost>;

}  // namespace orrery::kernels::cuda

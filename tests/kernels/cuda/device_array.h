// Arrays and matrices in device memory, for tests: owned, moved up and down whole. Matrices have
// gaps between rows where the stride says so; gaps hold NaN, so that a kernel that reads one shows
// it, and GapsUntouched tells whether one was written.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device.h"
#include "kernels/tensor_view.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels::cuda {

template <typename T>
class DeviceArray {
 public:
  // All bytes 0xff: NaN, or -1.
  explicit DeviceArray(int64_t n) : n_(n) {
    CUDA_CHECK(cudaMalloc(&data_, std::max<size_t>(1, n * sizeof(T))));
    CUDA_CHECK(cudaMemset(data_, 0xff, n * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host)
      : DeviceArray(static_cast<int64_t>(host.size())) {
    Upload(host);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), n_(other.n_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void Upload(const std::vector<T>& host) {
    CHECK_EQ(static_cast<int64_t>(host.size()), n_);
    CUDA_CHECK(cudaMemcpy(data_, host.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> Download() const {
    std::vector<T> host(static_cast<size_t>(n_));
    CUDA_CHECK(cudaMemcpy(host.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  void Zero() { CUDA_CHECK(cudaMemset(data_, 0, n_ * sizeof(T))); }
  T* get() const { return static_cast<T*>(data_); }
  int64_t size() const { return n_; }

 private:
  void* data_ = nullptr;
  int64_t n_ = 0;
};

inline float Rounded(DType dtype, float x) {
  return dtype == DType::kBFloat16 ? RoundToBFloat16(x) : x;
}
inline std::vector<float> Rounded(DType dtype, std::vector<float> x) {
  for (float& v : x) v = Rounded(dtype, v);
  return x;
}
inline double Eps(DType dtype) { return dtype == DType::kBFloat16 ? kBFloat16Eps : kFloatEps; }

class DeviceMatrix {
 public:
  // offset: elements before the first row, so that rows need not be aligned.
  DeviceMatrix(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0, int64_t offset = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        offset_(offset),
        bytes_((offset + rows * (cols + gap)) * SizeOf(dtype)) {}
  DeviceMatrix(DType dtype, const std::vector<float>& values, int64_t rows, int64_t cols,
               int64_t gap = 0, int64_t offset = 0)
      : DeviceMatrix(dtype, rows, cols, gap, offset) {
    Upload(values);
  }

  TensorView view() const {
    return {bytes_.get() + offset_ * SizeOf(dtype_), dtype_, rows_, cols_, stride_};
  }
  void Upload(const std::vector<float>& values) {
    CHECK_EQ(static_cast<int64_t>(values.size()), rows_ * cols_);
    std::vector<uint8_t> raw(static_cast<size_t>(bytes_.size()), 0xff);
    for (int64_t r = 0; r < rows_; ++r) {
      const float* from = values.data() + r * cols_;
      uint8_t* to = raw.data() + (offset_ + r * stride_) * SizeOf(dtype_);
      if (dtype_ == DType::kFloat32) {
        std::memcpy(to, from, cols_ * sizeof(float));
        continue;
      }
      for (int64_t i = 0; i < cols_; ++i) {
        const uint16_t half = ToBFloat16(from[i]);
        std::memcpy(to + 2 * i, &half, 2);
      }
    }
    bytes_.Upload(raw);
  }
  std::vector<float> Download() const {
    const std::vector<uint8_t> raw = bytes_.Download();
    std::vector<float> values(static_cast<size_t>(rows_ * cols_));
    for (int64_t r = 0; r < rows_; ++r) {
      const uint8_t* from = raw.data() + (offset_ + r * stride_) * SizeOf(dtype_);
      float* to = values.data() + r * cols_;
      if (dtype_ == DType::kFloat32) {
        std::memcpy(to, from, cols_ * sizeof(float));
        continue;
      }
      for (int64_t i = 0; i < cols_; ++i) {
        uint16_t half;
        std::memcpy(&half, from + 2 * i, 2);
        to[i] = FromBFloat16(half);
      }
    }
    return values;
  }
  bool GapsUntouched() const {
    const std::vector<uint8_t> raw = bytes_.Download();
    for (size_t b = 0; b < raw.size(); ++b) {
      const int64_t i = static_cast<int64_t>(b) / SizeOf(dtype_) - offset_;
      if ((i < 0 || i % stride_ >= cols_) && raw[b] != 0xff) return false;
    }
    return true;
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  DType dtype_;
  int64_t rows_, cols_, stride_, offset_;
  DeviceArray<uint8_t> bytes_;
};

// Skips where there is no GPU.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (NumDevices() == 0) GTEST_SKIP() << "no GPU on this machine";
    const auto limits = QueryDeviceLimits(0);
    ASSERT_TRUE(limits.ok()) << limits.status();
    limits_ = *limits;
  }
  DeviceLimits limits_;
};

}  // namespace orrery::kernels::cuda

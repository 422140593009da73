// TensorView: a plain, non-owning description of a matrix of a model. Kernels take views (and on a
// GPU one stream); who owns the memory keeps it alive until the kernel is done.
//
// All activations of the transformer are matrices of one row a token. On the CPU they are float32
// in memory whatever the model's dtype; where a bfloat16 model would store bfloat16, kernels round
// the value to it (Rounding), so the numbers are those of bfloat16 storage.
#pragma once

#include <cstdint>

#include "orchestrator/base/check.h"

namespace orrery::kernels {

enum class DType : uint8_t { kFloat32, kBFloat16 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Whether a kernel rounds what it stores to bfloat16 (nearest, ties to even).
enum class Rounding : uint8_t { kNone, kBFloat16 };

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements; >= cols

  static TensorView Float(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kFloat32, rows, cols, cols};
  }
  int64_t num_elements() const { return rows * cols; }
  float* f32(int64_t row = 0) const {
    CHECK(dtype == DType::kFloat32);
    return static_cast<float*>(data) + row * row_stride;
  }
  uint16_t* bf16(int64_t row = 0) const {
    CHECK(dtype == DType::kBFloat16);
    return static_cast<uint16_t*>(data) + row * row_stride;
  }
  // Rows [first, first + count).
  TensorView Rows(int64_t first, int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= rows);
    TensorView view = *this;
    view.data = static_cast<char*>(data) + first * row_stride * SizeOf(dtype);
    view.rows = count;
    return view;
  }
  // Columns [first, first + count) of every row.
  TensorView Cols(int64_t first, int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= cols);
    TensorView view = *this;
    view.data = static_cast<char*>(data) + first * SizeOf(dtype);
    view.cols = count;
    return view;
  }
};

}  // namespace orrery::kernels

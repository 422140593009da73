// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/linear/linear.h"

#ifndef ORRERY_KERNELS_LINEAR_ONCE
#define ORRERY_KERNELS_LINEAR_ONCE
#include <algorithm>
#include <cstring>
#include <vector>

namespace orrery::kernels::internal {

// C[m, j] = sum_c A(m, c) * B(c, j) for m < rows, j < 16.
struct TileArgs {
  const float* a;
  int64_t a_row, a_step;  // A(m, c) = a[m * a_row + c * a_step]
  const void* b;
  int64_t b_step;  // elements between B(c, 0) and B(c + 1, 0)
  int64_t depth;
  float* c;
  int64_t c_row;
  int64_t columns;    // valid ones of the 16
  const float* bias;  // 16 readable floats, or null
  bool accumulate;
  Rounding rounding;
};

}  // namespace orrery::kernels::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using internal::TileArgs;

using D = hn::CappedTag<float, kPanelColumns>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = static_cast<int>(kPanelColumns) / kLanes;
// Rows of a tile, so that its accumulators, one row of B and one broadcast fill the registers.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : HWY_ARCH_ARM ? 6 : 3;

HWY_INLINE hn::Vec<D> LoadB(const float* b) { return hn::LoadU(D(), b); }
HWY_INLINE hn::Vec<D> LoadB(const uint16_t* b) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, b))));
}

template <int kRows, typename B>
HWY_INLINE void Tile(const TileArgs& args) {
  const D d;
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[m][v] = hn::Zero(d);
  }
  const float* a = args.a;
  const B* b = static_cast<const B*>(args.b);
  const int64_t a_row = args.a_row, a_step = args.a_step, b_step = args.b_step;
  for (int64_t c = 0; c < args.depth; ++c) {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = LoadB(b + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const hn::Vec<D> x = hn::Set(d, a[m * a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[m][v] = hn::MulAdd(x, row[v], sum[m][v]);
    }
    a += a_step;
    b += b_step;
  }
  for (int m = 0; m < kRows; ++m) {
    HWY_ALIGN float out[kPanelColumns];
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[m][v], d, out + v * kLanes);
    float* to = args.c + m * args.c_row;
    for (int64_t j = 0; j < args.columns; ++j) {
      float value = out[j];
      if (args.bias != nullptr) value += args.bias[j];
      if (args.accumulate) value += to[j];
      to[j] = args.rounding == Rounding::kBFloat16 ? RoundToBFloat16(value) : value;
    }
  }
}

template <typename B, int kRows = kTileRows>
void TileOf(int64_t rows, const TileArgs& args) {
  if constexpr (kRows == 0) {
    return;
  } else if (rows >= kRows) {
    Tile<kRows, B>(args);
  } else {
    TileOf<B, kRows - 1>(rows, args);
  }
}

// All rows against one panel of 16 columns.
void PanelImpl(int64_t rows, const TileArgs& args, DType b_dtype) {
  TileArgs tile = args;
  for (int64_t m = 0; m < rows; m += kTileRows) {
    tile.a = args.a + m * args.a_row;
    tile.c = args.c + m * args.c_row;
    if (b_dtype == DType::kFloat32) {
      TileOf<float>(rows - m, tile);
    } else {
      TileOf<uint16_t>(rows - m, tile);
    }
  }
}

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace orrery::kernels {
namespace {

HWY_EXPORT(PanelImpl);

// Rows a task takes at once: their inputs stay in the second-level cache while panels pass by.
constexpr int64_t kTaskRows = 192;
// Multiply-adds below which a task is not worth handing to another thread.
constexpr int64_t kTaskWork = 1 << 16;

struct Grid {
  int64_t panels_per_task, panel_tasks, row_tasks;
};

Grid PlanGrid(int64_t rows, int64_t panels, int64_t depth) {
  const int64_t row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  const int64_t work = std::min(rows, kTaskRows) * kPanelColumns * std::max<int64_t>(depth, 1);
  const int64_t per_task = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(work, 1));
  return {per_task, (panels + per_task - 1) / per_task, row_tasks};
}

// Runs body(panel, first_row, num_rows) over all panels and rows, in parallel.
template <typename Body>
void ForPanels(int64_t rows, int64_t panels, int64_t depth, const Body& body) {
  if (rows == 0 || panels == 0) return;
  const Grid grid = PlanGrid(rows, panels, depth);
  ParallelFor(grid.panel_tasks * grid.row_tasks, [&](int64_t task) {
    const int64_t first_panel = task / grid.row_tasks * grid.panels_per_task;
    const int64_t first_row = task % grid.row_tasks * kTaskRows;
    const int64_t end = std::min(panels, first_panel + grid.panels_per_task);
    for (int64_t panel = first_panel; panel < end; ++panel) {
      body(panel, first_row, std::min(kTaskRows, rows - first_row));
    }
  });
}

int64_t NumPanels(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

// Copies 16 columns (the last panel: fewer, padded with zeros) of a row-major B [depth, columns]
// next to one another: a tile walks down B, and a page a step would miss the TLB each time.
template <typename T>
const T* GatherPanel(const T* b, int64_t b_step, int64_t depth, int64_t valid,
                     std::vector<T>* panel) {
  panel->resize(static_cast<size_t>(depth * kPanelColumns));
  T* to = panel->data();
  if (valid == kPanelColumns) {
    for (int64_t c = 0; c < depth; ++c) {
      std::memcpy(to + c * kPanelColumns, b + c * b_step, kPanelColumns * sizeof(T));
    }
    return to;
  }
  for (int64_t c = 0; c < depth; ++c) {
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      to[c * kPanelColumns + j] = j < valid ? b[c * b_step + j] : T{};
    }
  }
  return to;
}

// C (+)= A @ B with a row-major B of either dtype and rows of A next to one another.
template <typename T>
void Product(const TensorView& a, const T* b, int64_t b_step, DType dtype, int64_t columns,
             bool accumulate, const TensorView& out) {
  const int64_t depth = a.cols;
  ForPanels(a.rows, NumPanels(columns), depth,
            [&](int64_t panel, int64_t first_row, int64_t num_rows) {
              const int64_t first_column = panel * kPanelColumns;
              static thread_local std::vector<T> gathered;
              internal::TileArgs args{};
              args.a = a.f32(first_row);
              args.a_row = a.row_stride;
              args.a_step = 1;
              args.columns = std::min(kPanelColumns, columns - first_column);
              args.b = GatherPanel(b + first_column, b_step, depth, args.columns, &gathered);
              args.b_step = kPanelColumns;
              args.depth = depth;
              args.c = out.f32(first_row) + first_column;
              args.c_row = out.row_stride;
              args.accumulate = accumulate;
              args.rounding = Rounding::kNone;
              HWY_DYNAMIC_DISPATCH(PanelImpl)(num_rows, args, dtype);
            });
}

// out [cols, rows] = in^T, in tiles that fit the first-level cache.
void Transpose(const TensorView& in, float* out) {
  constexpr int64_t kTile = 32;
  ParallelFor((in.cols + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t end = std::min(in.cols, (tile + 1) * kTile);
    for (int64_t r = 0; r < in.rows; r += kTile) {
      const int64_t r_end = std::min(in.rows, r + kTile);
      for (int64_t c = tile * kTile; c < end; ++c) {
        for (int64_t i = r; i < r_end; ++i) out[c * in.rows + i] = in.f32(i)[c];
      }
    }
  });
}

template <typename T>
void PackTyped(const TensorView& w, T* packed) {
  ParallelFor(NumPanels(w.rows), [&](int64_t panel) {
    T* to = packed + panel * kPanelColumns * w.cols;
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      const int64_t n = panel * kPanelColumns + j;
      if (n >= w.rows) {
        for (int64_t k = 0; k < w.cols; ++k) to[k * kPanelColumns + j] = T{};
        continue;
      }
      const T* from = static_cast<const T*>(w.data) + n * w.row_stride;
      for (int64_t k = 0; k < w.cols; ++k) to[k * kPanelColumns + j] = from[k];
    }
  });
}

}  // namespace

PackedWeight PackWeight(const TensorView& w, void* packed) {
  if (w.dtype == DType::kFloat32) {
    PackTyped(w, static_cast<float*>(packed));
  } else {
    PackTyped(w, static_cast<uint16_t*>(packed));
  }
  return {packed, w.dtype, w.rows, w.cols};
}

void Linear(const TensorView& x, const PackedWeight& w, const float* bias, Rounding rounding,
            const TensorView& out) {
  CHECK_EQ(x.cols, w.k);
  CHECK_EQ(out.cols, w.n);
  CHECK_EQ(out.rows, x.rows);
  if (x.rows == 0) return;
  const int64_t panel_bytes = kPanelColumns * w.k * SizeOf(w.dtype);
  ForPanels(x.rows, NumPanels(w.n), w.k, [&](int64_t panel, int64_t first_row, int64_t num_rows) {
    internal::TileArgs args{};
    args.a = x.f32(first_row);
    args.a_row = x.row_stride;
    args.a_step = 1;
    args.b = static_cast<const char*>(w.data) + panel * panel_bytes;
    args.b_step = kPanelColumns;
    args.depth = w.k;
    args.c = out.f32(first_row) + panel * kPanelColumns;
    args.c_row = out.row_stride;
    args.columns = std::min(kPanelColumns, w.n - panel * kPanelColumns);
    args.bias = bias == nullptr ? nullptr : bias + panel * kPanelColumns;
    args.accumulate = false;
    args.rounding = rounding;
    HWY_DYNAMIC_DISPATCH(PanelImpl)(num_rows, args, w.dtype);
  });
}

void LinearGradInput(const TensorView& dy, const TensorView& w, bool accumulate,
                     const TensorView& dx) {
  CHECK_EQ(dy.cols, w.rows);
  CHECK_EQ(dx.cols, w.cols);
  CHECK_EQ(dx.rows, dy.rows);
  if (dy.rows == 0) return;
  if (w.dtype == DType::kFloat32) {
    Product(dy, w.f32(), w.row_stride, w.dtype, w.cols, accumulate, dx);
  } else {
    Product(dy, w.bf16(), w.row_stride, w.dtype, w.cols, accumulate, dx);
  }
}

void LinearGradWeight(const TensorView& dy, const TensorView& x, const TensorView& dw) {
  CHECK_EQ(dy.rows, x.rows);
  CHECK_EQ(dw.rows, dy.cols);
  CHECK_EQ(dw.cols, x.cols);
  if (dy.rows == 0 || dy.cols == 0) return;
  static thread_local std::vector<float> transposed;
  transposed.resize(static_cast<size_t>(dy.rows * dy.cols));
  Transpose(dy, transposed.data());
  Product(TensorView::Float(transposed.data(), dy.cols, dy.rows), x.f32(), x.row_stride,
          DType::kFloat32, x.cols, /*accumulate=*/true, dw);
}

}  // namespace orrery::kernels
#endif  // HWY_ONCE

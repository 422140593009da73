// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/cache_control.h"
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
  // What is multiplied after this panel, fetched meanwhile; may be null.
  const char* next;
  bool plain = false;  // 16 columns and nothing after the product; set by PanelImpl
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

// Nearest bfloat16, ties to even; NaN stays NaN.
HWY_INLINE hn::Vec<D> RoundVector(const hn::Vec<D>& x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto kept = hn::BitCast(D(), hn::And(rounded, hn::Set(du, 0xffff0000u)));
  return hn::IfThenElse(hn::IsNaN(x), x, kept);
}

// The sums of a tile [rows, 16] to their places, with all that comes after the product. Not part of
// Tile, which is compiled for every height.
HWY_NOINLINE void StoreTile(int64_t rows, const float* sums, const TileArgs& args) {
  const D d;
  for (int64_t m = 0; m < rows; ++m) {
    const float* sum = sums + m * kPanelColumns;
    float* to = args.c + m * args.c_row;
    if (args.columns == kPanelColumns) {
      for (int64_t j = 0; j < kPanelColumns; j += kLanes) {
        hn::Vec<D> x = hn::Load(d, sum + j);
        if (args.bias != nullptr) x = hn::Add(x, hn::LoadU(d, args.bias + j));
        if (args.accumulate) x = hn::Add(x, hn::LoadU(d, to + j));
        if (args.rounding == Rounding::kBFloat16) x = RoundVector(x);
        hn::StoreU(x, d, to + j);
      }
      continue;
    }
    for (int64_t j = 0; j < args.columns; ++j) {
      float value = sum[j];
      if (args.bias != nullptr) value += args.bias[j];
      if (args.accumulate) value += to[j];
      to[j] = args.rounding == Rounding::kBFloat16 ? RoundToBFloat16(value) : value;
    }
  }
}

// Steps over the depth between two prefetches.
constexpr int64_t kFetchSteps = 8;

// Every kFetchSteps it fetches some lines more of what comes after this panel.
template <int kRows, typename B>
HWY_INLINE void Tile(const TileArgs& args, const char* next, int64_t fetch_lines) {
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
  for (int64_t c0 = 0; c0 < args.depth; c0 += kFetchSteps) {
    for (int64_t i = 0; i < fetch_lines; ++i, next += 64) hwy::Prefetch(next);
    const int64_t steps = std::min(kFetchSteps, args.depth - c0);
#pragma GCC unroll 1
    for (int64_t c = 0; c < steps; ++c) {
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
  }
  if (args.plain) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(sum[m][v], d, args.c + m * args.c_row + v * kLanes);
      }
    }
    return;
  }
  HWY_ALIGN float sums[kRows * kPanelColumns];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[m][v], d, sums + m * kPanelColumns + v * kLanes);
    }
  }
  StoreTile(kRows, sums, args);
}

template <typename B, int kRows = kTileRows>
void TileOf(int64_t rows, const TileArgs& args, const char* next, int64_t fetch_lines) {
  if constexpr (kRows == 0) {
    return;
  } else if (rows == kRows) {
    Tile<kRows, B>(args, next, fetch_lines);
  } else {
    TileOf<B, kRows - 1>(rows, args, next, fetch_lines);
  }
}

template <typename B>
void Tiles(int64_t rows, const TileArgs& args) {
  // Tiles of about one height: a low one takes as long as a middling one.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t blocks = (args.depth + kFetchSteps - 1) / kFetchSteps;
  int64_t fetch_lines = 0;
  if (args.next != nullptr && blocks > 0) {
    const int64_t lines = args.depth * kPanelColumns * static_cast<int64_t>(sizeof(B)) / 64;
    fetch_lines = (lines + tiles * blocks - 1) / (tiles * blocks);
  }
  TileArgs tile = args;
  tile.plain = args.columns == kPanelColumns && args.bias == nullptr && !args.accumulate &&
               args.rounding == Rounding::kNone;
  const char* next = args.next;
  for (int64_t t = 0, m = 0; t < tiles; ++t) {
    const int64_t height = rows * (t + 1) / tiles - m;
    tile.a = args.a + m * args.a_row;
    tile.c = args.c + m * args.c_row;
    TileOf<B>(height, tile, next, fetch_lines);
    if (next != nullptr) next += 64 * fetch_lines * blocks;
    m += height;
  }
}

// All rows against one panel of 16 columns.
void PanelImpl(int64_t rows, const TileArgs& args, DType b_dtype) {
  if (b_dtype == DType::kFloat32) {
    Tiles<float>(rows, args);
  } else {
    Tiles<uint16_t>(rows, args);
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
// Up to so many rows the weight comes from memory about as fast as it is multiplied: a task takes a
// run of panels, so that the next can be fetched by the core that multiplies it.
constexpr int64_t kFewRows = 64;
constexpr int64_t kFewRowsTasks = 16;

struct Grid {
  int64_t panels_per_task, panel_tasks, row_tasks;
};

Grid PlanGrid(int64_t rows, int64_t panels, int64_t depth) {
  const int64_t row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  const int64_t work = std::min(rows, kTaskRows) * kPanelColumns * std::max<int64_t>(depth, 1);
  int64_t per_task = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(work, 1));
  if (rows <= kFewRows) {
    per_task = std::max(per_task, std::min<int64_t>(32, panels / kFewRowsTasks));
  }
  return {per_task, (panels + per_task - 1) / per_task, row_tasks};
}

// Runs body(panel, first_row, num_rows, more) over all panels and rows, in parallel; more: the same
// task goes on with the next panel.
template <typename Body>
void ForPanels(int64_t rows, int64_t panels, int64_t depth, const Body& body) {
  if (rows == 0 || panels == 0) return;
  const Grid grid = PlanGrid(rows, panels, depth);
  ParallelFor(grid.panel_tasks * grid.row_tasks, [&](int64_t task) {
    const int64_t first_panel = task / grid.row_tasks * grid.panels_per_task;
    const int64_t first_row = task % grid.row_tasks * kTaskRows;
    const int64_t end = std::min(panels, first_panel + grid.panels_per_task);
    for (int64_t panel = first_panel; panel < end; ++panel) {
      body(panel, first_row, std::min(kTaskRows, rows - first_row), panel + 1 < end);
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
            [&](int64_t panel, int64_t first_row, int64_t num_rows, bool) {
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

// out [cols, rows] = in^T: 16 rows side by side, so that reads and writes both run along lines.
void Transpose(const TensorView& in, float* out) {
  constexpr int64_t kRows = 16, kTaskColumns = 64;
  const float* data = in.f32();
  const int64_t rows = in.rows, stride = in.row_stride;
  ParallelFor((in.cols + kTaskColumns - 1) / kTaskColumns, [&](int64_t task) {
    const int64_t end = std::min(in.cols, (task + 1) * kTaskColumns);
    for (int64_t r = 0; r < rows; r += kRows) {
      const float* from = data + r * stride;
      const int64_t height = std::min(kRows, rows - r);
      for (int64_t c = task * kTaskColumns; c < end; ++c) {
        float* to = out + c * rows + r;
        if (height == kRows) {
          for (int64_t i = 0; i < kRows; ++i) to[i] = from[i * stride + c];
        } else {
          for (int64_t i = 0; i < height; ++i) to[i] = from[i * stride + c];
        }
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
  ForPanels(x.rows, NumPanels(w.n), w.k,
            [&](int64_t panel, int64_t first_row, int64_t num_rows, bool more) {
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
              if (more && x.rows <= kFewRows)
                args.next = static_cast<const char*>(args.b) + panel_bytes;
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

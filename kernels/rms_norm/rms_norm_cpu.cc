// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/rms_norm/rms_norm.h"

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {

HWY_INLINE float InverseRms(const float* x, int64_t d, float eps) {
  return 1.0f / std::sqrt(DotRow(x, x, d) / static_cast<float>(d) + eps);
}

void RmsNormRowImpl(const float* x, int64_t d, const float* w, float eps, bool round, float* out) {
  const Wide r = SetWide(InverseRms(x, d, eps));
  for (int64_t i = 0; i < d; i += kWide) {
    const Wide normed = RoundIf(round, Mul(LoadUpTo(x + i, d - i, 0), r));
    StoreUpTo(RoundIf(round, Mul(LoadUpTo(w + i, d - i, 0), normed)), out + i, d - i);
  }
}

void AddRowImpl(const float* x, const float* delta, int64_t d, bool round, float* sum) {
  for (int64_t i = 0; i < d; i += kWide) {
    const Wide s = Add(LoadUpTo(x + i, d - i, 0), LoadUpTo(delta + i, d - i, 0));
    StoreUpTo(RoundIf(round, s), sum + i, d - i);
  }
}

void RmsNormGradRowImpl(const float* dy, const float* x, int64_t d, const float* w, float eps,
                        bool accumulate, float* dx, float* dw) {
  const float r = InverseRms(x, d, eps);
  Wide dot = SetWide(0);
  for (int64_t i = 0; i < d; i += kWide) {
    const Wide wdy = Mul(LoadUpTo(w + i, d - i, 0), LoadUpTo(dy + i, d - i, 0));
    dot = MulAdd(wdy, LoadUpTo(x + i, d - i, 0), dot);
  }
  const Wide wide_r = SetWide(r);
  const Wide back = SetWide(-r * r * r / static_cast<float>(d) * SumWide(dot));
  for (int64_t i = 0; i < d; i += kWide) {
    const Wide g = LoadUpTo(dy + i, d - i, 0), xi = LoadUpTo(x + i, d - i, 0);
    const Wide own = Mul(Mul(LoadUpTo(w + i, d - i, 0), g), wide_r);
    Wide out = MulAdd(xi, back, own);
    if (accumulate) out = Add(out, LoadUpTo(dx + i, d - i, 0));
    StoreUpTo(out, dx + i, d - i);
    if (dw != nullptr) {
      StoreUpTo(MulAdd(Mul(g, xi), wide_r, LoadUpTo(dw + i, d - i, 0)), dw + i, d - i);
    }
  }
}

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace orrery::kernels {
namespace {

HWY_EXPORT(RmsNormRowImpl);
HWY_EXPORT(AddRowImpl);
HWY_EXPORT(RmsNormGradRowImpl);

constexpr int64_t kTaskRows = 64;

}  // namespace

void RmsNormRow(const float* x, int64_t d, const float* w, float eps, Rounding rounding,
                float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowImpl)(x, d, w, eps, rounding == Rounding::kBFloat16, out);
}

void RmsNormGradRow(const float* dy, const float* x, int64_t d, const float* w, float eps,
                    bool accumulate, float* dx, float* dw) {
  HWY_DYNAMIC_DISPATCH(RmsNormGradRowImpl)(dy, x, d, w, eps, accumulate, dx, dw);
}

void RmsNorm(const TensorView& x, const float* w, float eps, Rounding rounding,
             const TensorView& out) {
  CHECK_EQ(x.rows, out.rows);
  CHECK_EQ(x.cols, out.cols);
  ForRows(x.rows, kTaskRows,
          [&](int64_t t) { RmsNormRow(x.f32(t), x.cols, w, eps, rounding, out.f32(t)); });
}

void AddRmsNorm(const TensorView& x, const TensorView& delta, const float* w, float eps,
                Rounding rounding, const TensorView& sum, const TensorView& out) {
  CHECK_EQ(x.rows, delta.rows);
  CHECK_EQ(x.cols, delta.cols);
  const bool round = rounding == Rounding::kBFloat16;
  ForRows(x.rows, kTaskRows, [&](int64_t t) {
    HWY_DYNAMIC_DISPATCH(AddRowImpl)(x.f32(t), delta.f32(t), x.cols, round, sum.f32(t));
    RmsNormRow(sum.f32(t), x.cols, w, eps, rounding, out.f32(t));
  });
}

void RmsNormGrad(const TensorView& dy, const TensorView& x, const float* w, float eps,
                 bool accumulate, const TensorView& dx, float* dw) {
  CHECK_EQ(dy.rows, x.rows);
  // Each task sums its own rows; the parts are added in task order.
  const int64_t d = x.cols, tasks = (x.rows + kTaskRows - 1) / kTaskRows;
  std::vector<float> parts(dw == nullptr ? 0 : static_cast<size_t>(tasks * d), 0.0f);
  ParallelFor(tasks, [&](int64_t task) {
    float* part = dw == nullptr ? nullptr : parts.data() + task * d;
    const int64_t end = std::min(x.rows, (task + 1) * kTaskRows);
    for (int64_t t = task * kTaskRows; t < end; ++t) {
      RmsNormGradRow(dy.f32(t), x.f32(t), d, w, eps, accumulate, dx.f32(t), part);
    }
  });
  for (int64_t task = 0; dw != nullptr && task < tasks; ++task) {
    for (int64_t i = 0; i < d; ++i) dw[i] += parts[task * d + i];
  }
}

}  // namespace orrery::kernels
#endif  // HWY_ONCE

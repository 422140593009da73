// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu/swiglu_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/swiglu/swiglu.h"

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {

HWY_INLINE Wide Sigmoid(const Wide& g) {
  const Wide one = SetWide(1);
  return Div(one, Add(one, Exp(Sub(SetWide(0), g))));
}

void SwiGluRowImpl(const float* gate, const float* up, int64_t f, bool round, float* out) {
  for (int64_t i = 0; i < f; i += kWide) {
    const Wide g = LoadUpTo(gate + i, f - i, 0);
    const Wide value = Mul(Mul(g, Sigmoid(g)), LoadUpTo(up + i, f - i, 0));
    StoreUpTo(RoundIf(round, value), out + i, f - i);
  }
}

void SwiGluGradRowImpl(const float* dy, const float* gate, const float* up, int64_t f, float* dgate,
                       float* dup) {
  const Wide one = SetWide(1);
  for (int64_t i = 0; i < f; i += kWide) {
    const Wide g = LoadUpTo(gate + i, f - i, 0), s = Sigmoid(g);
    const Wide d = LoadUpTo(dy + i, f - i, 0);
    const Wide slope = Mul(s, MulAdd(g, Sub(one, s), one));
    StoreUpTo(Mul(Mul(d, LoadUpTo(up + i, f - i, 0)), slope), dgate + i, f - i);
    StoreUpTo(Mul(d, Mul(g, s)), dup + i, f - i);
  }
}

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace orrery::kernels {
namespace {

HWY_EXPORT(SwiGluRowImpl);
HWY_EXPORT(SwiGluGradRowImpl);

constexpr int64_t kTaskRows = 32;

}  // namespace

void SwiGlu(const TensorView& gate_up, Rounding rounding, const TensorView& out) {
  const int64_t f = out.cols;
  CHECK_EQ(gate_up.cols, 2 * f);
  CHECK_EQ(gate_up.rows, out.rows);
  ForRows(out.rows, kTaskRows, [&](int64_t t) {
    const float* row = gate_up.f32(t);
    HWY_DYNAMIC_DISPATCH(SwiGluRowImpl)
    (row, row + f, f, rounding == Rounding::kBFloat16, out.f32(t));
  });
}

void SwiGluGrad(const TensorView& dy, const TensorView& gate_up, const TensorView& dgate_up) {
  const int64_t f = dy.cols;
  CHECK_EQ(gate_up.cols, 2 * f);
  CHECK_EQ(dgate_up.cols, 2 * f);
  ForRows(dy.rows, kTaskRows, [&](int64_t t) {
    const float* row = gate_up.f32(t);
    float* out = dgate_up.f32(t);
    HWY_DYNAMIC_DISPATCH(SwiGluGradRowImpl)(dy.f32(t), row, row + f, f, out, out + f);
  });
}

}  // namespace orrery::kernels
#endif  // HWY_ONCE

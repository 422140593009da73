// Sixteen float lanes as one value, on whatever vectors the instruction set has: the width in which
// row kernels reduce, so that a sum has one order on every processor. Include inside a file that
// foreach_target.h compiles, after hwy/highway.h.

#if defined(ORRERY_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORRERY_KERNELS_CPU_VECTOR_INL_H_
#undef ORRERY_KERNELS_CPU_VECTOR_INL_H_
#else
#define ORRERY_KERNELS_CPU_VECTOR_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kWide = 16;
using DF = hn::CappedTag<float, kWide>;
using VF = hn::Vec<DF>;
inline constexpr int kWideLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kWideVectors = static_cast<int>(kWide) / kWideLanes;

struct Wide {
  VF v[kWideVectors];
};

template <typename F>
HWY_INLINE Wide MakeWide(const F& f) {
  Wide r;
#pragma GCC unroll 4
  for (int i = 0; i < kWideVectors; ++i) r.v[i] = f(i);
  return r;
}

HWY_INLINE Wide SetWide(float x) {
  return MakeWide([&](int) { return hn::Set(DF(), x); });
}
HWY_INLINE Wide LoadWide(const float* p) {
  return MakeWide([&](int i) { return hn::LoadU(DF(), p + i * kWideLanes); });
}
// The first n of 16 floats, the others `fill`. Whole vectors are loaded as such: a head size that
// is a multiple of 8 never goes through memory.
HWY_INLINE Wide LoadPart(const float* p, int64_t n, float fill) {
  return MakeWide([&](int i) {
    const int64_t left = n - i * kWideLanes;
    if (left >= kWideLanes) return hn::LoadU(DF(), p + i * kWideLanes);
    if (left <= 0) return hn::Set(DF(), fill);
    HWY_ALIGN float buffer[kWideLanes];
    for (int64_t j = 0; j < kWideLanes; ++j) buffer[j] = j < left ? p[i * kWideLanes + j] : fill;
    return hn::Load(DF(), buffer);
  });
}
HWY_INLINE Wide LoadUpTo(const float* p, int64_t n, float fill) {
  return n >= kWide ? LoadWide(p) : LoadPart(p, n, fill);
}
HWY_INLINE void StoreWide(const Wide& x, float* p) {
#pragma GCC unroll 4
  for (int i = 0; i < kWideVectors; ++i) hn::StoreU(x.v[i], DF(), p + i * kWideLanes);
}
HWY_INLINE void StoreUpTo(const Wide& x, float* p, int64_t n) {
  if (n >= kWide) return StoreWide(x, p);
#pragma GCC unroll 4
  for (int i = 0; i < kWideVectors; ++i) {
    const int64_t left = n - i * kWideLanes;
    if (left >= kWideLanes) {
      hn::StoreU(x.v[i], DF(), p + i * kWideLanes);
    } else if (left > 0) {
      HWY_ALIGN float buffer[kWideLanes];
      hn::Store(x.v[i], DF(), buffer);
      for (int64_t j = 0; j < left; ++j) p[i * kWideLanes + j] = buffer[j];
    }
  }
}
HWY_INLINE Wide Add(const Wide& a, const Wide& b) {
  return MakeWide([&](int i) { return hn::Add(a.v[i], b.v[i]); });
}
HWY_INLINE Wide Sub(const Wide& a, const Wide& b) {
  return MakeWide([&](int i) { return hn::Sub(a.v[i], b.v[i]); });
}
HWY_INLINE Wide Mul(const Wide& a, const Wide& b) {
  return MakeWide([&](int i) { return hn::Mul(a.v[i], b.v[i]); });
}
HWY_INLINE Wide Div(const Wide& a, const Wide& b) {
  return MakeWide([&](int i) { return hn::Div(a.v[i], b.v[i]); });
}
HWY_INLINE Wide MulAdd(const Wide& a, const Wide& b, const Wide& c) {
  return MakeWide([&](int i) { return hn::MulAdd(a.v[i], b.v[i], c.v[i]); });
}
HWY_INLINE Wide Max(const Wide& a, const Wide& b) {
  return MakeWide([&](int i) { return hn::Max(a.v[i], b.v[i]); });
}
HWY_INLINE Wide Exp(const Wide& a) {
  return MakeWide([&](int i) { return hn::Exp(DF(), a.v[i]); });
}
// Nearest bfloat16, ties to even. NaN may become infinity's neighbour: checked for elsewhere.
HWY_INLINE VF RoundVector(const VF& a) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, a);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  return hn::BitCast(DF(), hn::And(rounded, hn::Set(du, 0xffff0000u)));
}
HWY_INLINE Wide RoundWide(const Wide& a) {
  return MakeWide([&](int i) { return RoundVector(a.v[i]); });
}
HWY_INLINE Wide RoundIf(bool round, const Wide& a) { return round ? RoundWide(a) : a; }

// Sum of the 16 lanes as a balanced tree: one order everywhere.
HWY_INLINE float SumWide(const Wide& a) {
  HWY_ALIGN float x[kWide];
  StoreWide(a, x);
  for (int64_t width = kWide / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) x[i] += x[i + width];
  }
  return x[0];
}
HWY_INLINE float MaxWide(const Wide& a) {
  HWY_ALIGN float x[kWide];
  StoreWide(a, x);
  float m = x[0];
  for (int64_t i = 1; i < kWide; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

// sum_i a[i] * b[i]
HWY_INLINE float DotRow(const float* a, const float* b, int64_t n) {
  Wide sum = SetWide(0);
  for (int64_t i = 0; i < n; i += kWide) {
    sum = MulAdd(LoadUpTo(a + i, n - i, 0), LoadUpTo(b + i, n - i, 0), sum);
  }
  return SumWide(sum);
}

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

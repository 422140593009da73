// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/head/log_softmax_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <cmath>
#include <limits>

#include "kernels/cpu/vector-inl.h"
#include "kernels/head/log_softmax.h"

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {

LogSoftmaxStats LogSoftmaxImpl(const float* logits, int64_t n, float inverse_temperature,
                               float* exps) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const Wide scale = SetWide(inverse_temperature);
  Wide max = SetWide(lowest), check = SetWide(0);
  for (int64_t j = 0; j < n; j += kWide) {
    const Wide z = Mul(LoadUpTo(logits + j, n - j, logits[0]), scale);
    max = Max(max, z);
    check = MulAdd(z, SetWide(0), check);  // NaN once anything is NaN or infinite
  }
  LogSoftmaxStats stats;
  stats.max = MaxWide(max);
  stats.finite = SumWide(check) == 0;
  const Wide top = SetWide(stats.max);
  Wide sum = SetWide(0), weighted = SetWide(0);
  for (int64_t j = 0; j < n; j += kWide) {
    // exp of a very negative number is 0: lanes past the end add nothing.
    const Wide shifted = Sub(Mul(LoadUpTo(logits + j, n - j, -1e30f), scale), top);
    const Wide e = Exp(shifted);
    if (exps != nullptr) StoreUpTo(e, exps + j, n - j);
    sum = Add(sum, e);
    weighted = MulAdd(e, Max(shifted, SetWide(-1e4f)), weighted);
  }
  const float total = SumWide(sum);
  stats.log_sum = std::log(total);
  stats.entropy = stats.log_sum - SumWide(weighted) / total;
  return stats;
}

void LogSoftmaxGradImpl(const float* logits, int64_t n, float inverse_temperature,
                        const LogSoftmaxStats& stats, float dlogprob, float dentropy,
                        float* dlogits) {
  const Wide scale = SetWide(inverse_temperature);
  const Wide shift = SetWide(stats.max + stats.log_sum), entropy = SetWide(stats.entropy);
  const Wide dl = SetWide(-dlogprob), de = SetWide(-dentropy);
  for (int64_t j = 0; j < n; j += kWide) {
    const Wide logp = Sub(Mul(LoadUpTo(logits + j, n - j, 0), scale), shift);
    const Wide p = Exp(logp);
    const Wide slope = MulAdd(de, Add(Max(logp, SetWide(-1e4f)), entropy), dl);
    StoreUpTo(Mul(Mul(p, slope), scale), dlogits + j, n - j);
  }
}

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace orrery::kernels {

HWY_EXPORT(LogSoftmaxImpl);
HWY_EXPORT(LogSoftmaxGradImpl);

float LogSoftmaxStats::Logprob(float logit, float inverse_temperature) const {
  return logit * inverse_temperature - max - log_sum;
}

LogSoftmaxStats LogSoftmax(const float* logits, int64_t n, float inverse_temperature, float* exps) {
  return HWY_DYNAMIC_DISPATCH(LogSoftmaxImpl)(logits, n, inverse_temperature, exps);
}

void LogSoftmaxGrad(const float* logits, int64_t n, float inverse_temperature,
                    const LogSoftmaxStats& stats, int64_t target, float dlogprob, float dentropy,
                    float* dlogits) {
  HWY_DYNAMIC_DISPATCH(LogSoftmaxGradImpl)
  (logits, n, inverse_temperature, stats, dlogprob, dentropy, dlogits);
  dlogits[target] += dlogprob * inverse_temperature;
}

}  // namespace orrery::kernels
#endif  // HWY_ONCE

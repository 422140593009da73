// Random operands, the unit of rounding, and derivatives of functions in double.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cpu/bfloat16.h"
#include "kernels/tensor_view.h"
#include "orchestrator/base/hash.h"

namespace orrery::kernels {

inline constexpr double kFloatEps = 0x1p-24;  // largest relative error of a rounding
inline constexpr double kBFloat16Eps = 0x1p-8;

class Random {
 public:
  explicit Random(uint64_t seed) : stream_(seed) {}
  double Between(double low, double high) { return low + stream_.Uniform() * (high - low); }
  int64_t Pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(stream_.Uniform() * static_cast<double>(high - low + 1));
  }
  std::vector<float> Floats(int64_t n, double scale = 1) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = static_cast<float>(Between(-scale, scale));
    return out;
  }

 private:
  RandomStream stream_;
};

inline TensorView View(std::vector<float>& x, int64_t rows, int64_t cols) {
  return TensorView::Float(x.data(), rows, cols);
}

// d f / d x by central differences in double.
inline std::vector<double> Slopes(const std::function<double(const std::vector<double>&)>& f,
                                  const std::vector<float>& at) {
  std::vector<double> x(at.begin(), at.end()), out(at.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double h = 1e-5, center = x[i];
    x[i] = center + h;
    const double above = f(x);
    x[i] = center - h;
    out[i] = (above - f(x)) / (2 * h);
    x[i] = center;
  }
  return out;
}
inline constexpr double kSlopeError = 1e-8;  // of Slopes, for functions and arguments of order 1

inline double MaxAbs(const std::vector<double>& x) {
  double max = 0;
  for (const double v : x) max = std::max(max, std::abs(v));
  return max;
}

}  // namespace orrery::kernels

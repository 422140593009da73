#include <algorithm>
#include <cmath>

#include "kernels/experts/routed_experts.h"

namespace orrery::kernels {
namespace {

// sum_i a_i b_i and the sum of its terms' absolute values.
struct Sum {
  double value = 0, size = 0;
  void Add(double term, double term_size) { value += term, size += term_size; }
};

Sum Dot(const float* a, const float* b, int64_t n) {
  Sum sum;
  for (int64_t i = 0; i < n; ++i) {
    const double term = static_cast<double>(a[i]) * b[i];
    sum.Add(term, std::abs(term));
  }
  return sum;
}

}  // namespace

double RoutedExpertsReference(const float* x, const ExpertsShape& shape,
                              std::span<const int32_t> experts, const float* weights,
                              const TensorView& gate_up, const TensorView& down, double* out) {
  const int64_t d = shape.d, f = shape.f;
  std::vector<Sum> sums(static_cast<size_t>(d)), hidden(static_cast<size_t>(f));
  for (size_t s = 0; s < experts.size(); ++s) {
    const int64_t e = experts[s];
    for (int64_t j = 0; j < f; ++j) {
      const Sum gate = Dot(gate_up.f32(e * 2 * f + j), x, d);
      const Sum up = Dot(gate_up.f32(e * 2 * f + f + j), x, d);
      const double sigmoid = 1 / (1 + std::exp(-gate.value));
      // silu's slope is below 1.1.
      hidden[j] = {gate.value * sigmoid * up.value, 1.1 * gate.size * up.size};
    }
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < f; ++j) {
        const double w = static_cast<double>(weights[s]) * down.f32(e * d + i)[j];
        sums[i].Add(w * hidden[j].value, std::abs(w) * hidden[j].size);
      }
    }
  }
  double largest = 0;
  for (int64_t i = 0; i < d; ++i) {
    out[i] = sums[i].value;
    largest = std::max(largest, sums[i].size);
  }
  return largest;
}

}  // namespace orrery::kernels

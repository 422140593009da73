#include <algorithm>
#include <cmath>

#include "kernels/head/log_softmax.h"

namespace orrery::kernels {

double LogSoftmaxReference(const float* logits, int64_t n, double inverse_temperature,
                           double* logprobs) {
  const double max = *std::max_element(logits, logits + n) * inverse_temperature;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[i] * inverse_temperature - max);
  double entropy = 0;
  for (int64_t i = 0; i < n; ++i) {
    logprobs[i] = logits[i] * inverse_temperature - max - std::log(sum);
    entropy -= std::exp(logprobs[i]) * logprobs[i];
  }
  return entropy;
}

}  // namespace orrery::kernels

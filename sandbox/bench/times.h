// Samples of a duration, and how they are shown.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace orrery::sandbox {

using BenchClock = std::chrono::steady_clock;

inline double MsSince(BenchClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(BenchClock::now() - begin).count();
}

// The sample at a share of the sorted samples; 0 where there is none.
inline double Percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto last = static_cast<double>(samples.size() - 1);
  return samples[static_cast<size_t>(share * last + 0.5)];
}

inline void PrintTimes(const std::string& what, const std::vector<double>& samples) {
  std::printf("%-34s p50 %8.2f  p90 %8.2f  p99 %8.2f  ms  (n=%zu)\n", what.c_str(),
              Percentile(samples, 0.5), Percentile(samples, 0.9), Percentile(samples, 0.99),
              samples.size());
}

}  // namespace orrery::sandbox

// Seconds of the steady clock.
#pragma once

#include <chrono>

namespace orrery {

class Stopwatch {
 public:
  // Since construction or the last lap.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace orrery

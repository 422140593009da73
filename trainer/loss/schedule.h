// Learning rates as a pure function of the optimizer step. Steps are counted from 0: step s is the
// rate of the (s + 1)-th update.
//
//   warm-up    s < W:   peak (s + 1) / W        the first update already learns; step W - 1 is at
//   peak then with p = min((s - W) / D, 1)           step W is at peak constant            peak
//   linear              peak + (min - peak) p
//   cosine              min + (peak - min) (1 + cos(pi p)) / 2
//
// W: warmup_steps, D: decay_steps, the length of the decay. Step W + D and all later ones are at
// min, so a run of W + D updates ends one step above it and no update is lost to a rate of 0.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::trainer {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine };

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-6;   // the peak
  double min_learning_rate = 0;  // where the decay ends; not used by constant
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // positive for linear and cosine; not used by constant
};

// Names as in the YAML: constant, linear, cosine.
absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name);

// Says which value cannot be used, and why.
absl::Status CheckSchedule(const ScheduleOptions& options);

// REQUIRES: CheckSchedule(options) is OK, step >= 0.
double LearningRate(const ScheduleOptions& options, int64_t step);

}  // namespace orrery::trainer

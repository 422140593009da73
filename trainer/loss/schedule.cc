#include "trainer/loss/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {

absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  return InvalidInput("schedule '{}' is unknown; use constant, linear or cosine", name);
}

absl::Status CheckSchedule(const ScheduleOptions& options) {
  if (!std::isfinite(options.learning_rate) || options.learning_rate < 0) {
    return InvalidInput("learning_rate is {}; give a number of at least 0", options.learning_rate);
  }
  if (options.warmup_steps < 0) {
    return InvalidInput("warmup_steps is {}; give a number of at least 0", options.warmup_steps);
  }
  if (options.kind == ScheduleKind::kConstant) return absl::OkStatus();
  if (!(options.min_learning_rate >= 0 && options.min_learning_rate <= options.learning_rate)) {
    return InvalidInput("min_learning_rate is {}; give a number between 0 and learning_rate ({})",
                        options.min_learning_rate, options.learning_rate);
  }
  if (options.decay_steps <= 0) {
    return InvalidInput("decay_steps is {}; a schedule that decays needs at least 1 step",
                        options.decay_steps);
  }
  return absl::OkStatus();
}

double LearningRate(const ScheduleOptions& options, int64_t step) {
  CHECK_GE(step, 0);
  const double peak = options.learning_rate;
  if (step < options.warmup_steps) {
    return peak * (static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps));
  }
  if (options.kind == ScheduleKind::kConstant) return peak;
  CHECK_GT(options.decay_steps, 0);
  const double progress = std::min(
      static_cast<double>(step - options.warmup_steps) / static_cast<double>(options.decay_steps),
      1.0);
  const double left = options.kind == ScheduleKind::kLinear
                          ? 1 - progress
                          : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return options.min_learning_rate + (peak - options.min_learning_rate) * left;
}

}  // namespace orrery::trainer

// optimizer.safetensors of a checkpoint: master weights and both moments of AdamW, float32 in flat
// order, and the number of steps taken. One format for every device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::trainer {

struct OptimizerState {
  std::vector<float> master, moment1, moment2;
  int64_t steps = 0;
};

absl::Status SaveOptimizer(const std::string& folder, std::span<const float> master,
                           std::span<const float> moment1, std::span<const float> moment2,
                           int64_t steps);

// num_elements: of each buffer; another number is an error that says the checkpoint belongs to
// another model.
absl::StatusOr<OptimizerState> LoadOptimizer(const std::string& folder, size_t num_elements);

}  // namespace orrery::trainer

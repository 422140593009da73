// Shapes of public models by name, for measurements with random weights where their checkpoints are
// not at hand. From their config.json files.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/model/model_spec.h"

namespace orrery::model {

// qwen3-30b-a3b, qwen3-8b, qwen3-1.7b, qwen3-0.6b, smollm2-135m. InvalidInput names them all.
absl::StatusOr<ModelSpec> KnownShape(std::string_view name);
std::vector<std::string_view> KnownShapeNames();

// The same shape with its first layers alone. REQUIRES: 1 <= layers <= spec.num_layers.
ModelSpec FirstLayers(ModelSpec spec, int64_t layers);

}  // namespace orrery::model

// One row of a file, as JSON, becomes a Prompt: which field is what, and the presets of known sets.
// Readers of every format hand their rows over as JSON values, so the rules are the same for all.
// Constant, safe from any thread. Errors name field, value and fix; the reader adds the place.
#pragma once

#include <rapidjson/document.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "orchestrator/data/prompt_shape.h"
#include "orchestrator/types.h"

namespace orrery::data {

class RowMapper {
 public:
  explicit RowMapper(const configs::DataConfig& config);

  // `index` counts the rows of the whole dataset and names the prompt: "train/17".
  absl::StatusOr<Prompt> Map(const rapidjson::Value& row, int64_t index) const;

 private:
  absl::Status MapPrompt(const rapidjson::Value& row, Prompt& prompt) const;
  absl::Status MapSolution(const rapidjson::Value& row, Prompt& prompt) const;
  absl::Status MapAnswer(const rapidjson::Value& row, Prompt& prompt) const;
  absl::Status MapGsm8k(const rapidjson::Value& row, Prompt& prompt) const;
  absl::Status MapMath(const rapidjson::Value& row, Prompt& prompt) const;
  void MapMetadata(const rapidjson::Value& row, Prompt& prompt) const;

  const std::string preset_;
  const std::string split_;
  const PromptShape shape_;
  std::string prompt_field_;
  std::string answer_field_;
  std::string solution_field_;
};

}  // namespace orrery::data

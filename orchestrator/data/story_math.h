// Story arithmetic: a generated task family that a model of 0.3 million parameters learns.
//
//   Tom has 8 boxes with 6 pens each, sells 31 pens and finds 24. How many pens does Tom have now?
//   8*6=48. 48-31=17. 17+24=41. #### 41
//
// A row is a pure function of (seed, split, index). Train and test share no problem whatever the
// seeds: the hash of a problem's text says which of the two it belongs to. For sft a share of the
// solutions is corrupted, so that a model that imitates them well still errs when sampled: the
// start that reinforcement learning improves on. Answers are always right.
//
// In the tool form a system message speaks of a calculator, and the solution is a list of turns:
// "<calc>8*6</calc>" by the assistant, "48" by the tool, ..., "#### 41".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "orchestrator/data/dataset.h"
#include "orchestrator/data/prompt_shape.h"
#include "orchestrator/data/story_templates.h"

namespace orrery::data {

// What is written around a call of the calculator, in the tool form.
inline constexpr std::string_view kCalculatorOpen = "<calc>";
inline constexpr std::string_view kCalculatorClose = "</calc>";

// A step with its numbers: "48-31=17".
struct WorkedStep {
  int64_t left = 0;
  char operation = '+';
  int64_t right = 0;
  int64_t result = 0;
};

// The steps of a story in order. Where `wrong_step` >= 0, `error` is added to that step's result
// and carried on. Empty where a quotient is not whole or a number is negative.
std::vector<WorkedStep> WorkOut(const Story& story, int wrong_step = -1, int64_t error = 0);

// Whether the problem belongs to the test split; one in eight does.
bool IsTestProblem(std::string_view text);

class StoryMath : public Dataset {
 public:
  // `data` gives split, limit and the form of the prompt. An error for another split than train and
  // test, and for a template with fields that do not exist.
  static absl::StatusOr<std::unique_ptr<StoryMath>> Make(const configs::StoryMathConfig& config,
                                                         const configs::DataConfig& data,
                                                         uint64_t seed);

  int64_t size() const override { return size_; }
  Prompt Row(int64_t index) const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  StoryMath(const configs::StoryMathConfig& config, const configs::DataConfig& data, uint64_t seed);
  absl::StatusOr<Prompt> Generate(int64_t index) const;
  absl::Status ShapePrompt(const Story& story, Prompt& prompt) const;

  const configs::StoryMathConfig config_;
  const std::string split_;
  const uint64_t seed_;
  const int64_t size_;
  const PromptShape shape_;
  std::string fingerprint_;
};

}  // namespace orrery::data

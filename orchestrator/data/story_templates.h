// The stories of story_math: short word problems of one to three steps, each a sentence pattern
// with a way to draw its numbers. All numbers of a right solution lie in 0..99, so that responses
// stay short. The words are few: a tokenizer of 512 entries has most of them whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/base/hash.h"

namespace orrery::data {

// A number of the story, or the result of an earlier step.
struct Operand {
  int64_t value = 0;
  int from_step = -1;  // >= 0: that step's result, value is not used

  static Operand Number(int64_t value) { return {value, -1}; }
  static Operand Result(int step) { return {0, step}; }
};

struct Step {
  Operand left;
  char operation;  // + - * /
  Operand right;
};

struct Story {
  std::string text;
  std::vector<Step> steps;  // the last one's result is the answer
};

inline constexpr int kNumStoryTemplates = 12;

// REQUIRES: 0 <= template_index < kNumStoryTemplates. The first six are the easy family: one or two
// steps.
Story DrawStory(int template_index, RandomStream& random);

}  // namespace orrery::data

// What the two GSM8K graders of verl share. Semantics: verl/utils/reward_score/gsm8k.py of verl
// 1dda039b9: only the last 300 characters are read, the answer is compared as a string.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "orchestrator/types.h"

namespace orrery::rewards {

inline constexpr size_t kGsm8kCharacters = 300;

// 1 where the strings are equal, 0 where they are not or no answer was found.
Outcome GradeGsm8k(const std::optional<std::string>& answer, const Prompt& prompt);

}  // namespace orrery::rewards

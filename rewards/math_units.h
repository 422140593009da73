// Names of units as answers write them, in one spelling.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace orrery::rewards {

// {"square", "inches"} -> "inch^2", {"miles", "per", "hour"} -> "mile/hour". nullopt where a word
// is no unit (then it is a remark: "apples").
std::optional<std::string> CanonicalUnit(const std::vector<std::string>& words);

}  // namespace orrery::rewards

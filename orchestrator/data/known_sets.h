// How well-known math sets write their answers. Pure functions of text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace orrery::data {

// GSM8K: what follows the last "#### ", thousands commas removed; nothing where there is no mark.
std::optional<std::string> Gsm8kAnswer(std::string_view solution);

// GSM8K: the text without its calculator annotations, <<48/2=24>>.
std::string WithoutAnnotations(std::string_view solution);

// MATH: the content of the last \boxed{...} (or \fbox{...}, or "\boxed 5"); braces must match.
std::optional<std::string> LastBoxed(std::string_view solution);

}  // namespace orrery::data

// String normalisation of an answer as in the MATH paper's grader ("mathd", Hendrycks et al. 2021),
// the first of the two comparisons in the "math" graders of miles and slime. Semantics from
// rollout/rm_hub/math_utils.py of miles 31f1ca961 and slime 624b824a8.
#pragma once

#include <string>
#include <string_view>

namespace orrery::rewards {

std::string NormalizeMathd(std::string_view answer);

// The content of an answer that is \text{...} and nothing else; the answer itself otherwise.
std::string_view InsideText(std::string_view answer);

}  // namespace orrery::rewards

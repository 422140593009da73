// The "math" grader that miles and slime share (rollout/rm_hub/math_utils.py of miles 31f1ca961 and
// slime 624b824a8), so that curves can be compared with theirs: the last \boxed{} must equal the
// label after the mathd normalisation, or after the one made for sympy.
//
// Where the original asks sympy whether a difference simplifies to 0 (two answers that are both no
// integers and no plain fractions, so never for GSM8K) our own evaluation answers instead
// (math_expression.h), under the same guard against towers of exponents.
//
// The originals differ in one thing: an infinity makes miles raise an OverflowError, where slime
// goes on. A response that makes them raise scores 0 here, as it must not be a way out of the
// baseline.
#pragma once

#include <string_view>

#include "orchestrator/types.h"

namespace orrery::rewards {

enum class MathVariant { kMiles, kSlime };

Outcome GradeMathParity(std::string_view response, std::string_view label, MathVariant variant);

}  // namespace orrery::rewards

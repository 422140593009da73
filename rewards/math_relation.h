// Equations and inequalities of answers: when two say the same, and which intervals they describe.
#pragma once

#include <optional>

#include "rewards/math_answer.h"

namespace orrery::rewards {

// The same conditions up to order and constant factors (positive ones for inequalities); ratios a:b
// of the same value. REQUIRES: both are relations.
bool EqualSystems(const Answer& truth, const Answer& given);

// x > 5 as (5, oo), 0 < x <= 1 as (0, 1]: conditions on one variable that stands alone.
std::optional<Answer> AsInterval(const Answer& relation);

// "x < 2 or x > 3" as the union of its intervals; a union as itself.
std::optional<Answer> AsUnion(const Answer& answer);

}  // namespace orrery::rewards

// Whether a given answer equals the true one. When in doubt it does not: a wrong answer accepted
// trains the policy to give it, a right one refused costs a sample.
#pragma once

#include <string_view>

namespace orrery::rewards {

struct MathOptions {
  bool ordered_lists = false;  // "1, 2" and "2, 1" differ
};

// Never hangs: sizes, depths and exponents are limited (rational.h, math_parser.cc); what exceeds
// the limits is equal to itself alone.
bool EqualMath(std::string_view truth, std::string_view given, const MathOptions& options);

}  // namespace orrery::rewards

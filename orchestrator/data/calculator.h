// The calculator that a model may call: whole numbers, + - * / and brackets. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::data {

// The value of an expression such as "8*(6-2)"; blanks are skipped. An error is for the model to
// read: a broken expression, a quotient that is not whole, a number beyond 64 bits, more than 200
// characters.
absl::StatusOr<int64_t> Calculate(std::string_view expression);

// "48", or "error: 7/2 is not a whole number".
std::string CalculatorReply(std::string_view expression);

}  // namespace orrery::data

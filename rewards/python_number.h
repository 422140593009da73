// Numbers as Python reads and prints them: the graders whose verdicts we reproduce are Python, and
// depend on what float() accepts and on int(float(x)) losing digits beyond 2^53.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace orrery::rewards {

// float(text): optional sign, digits with single underscores between them, point, exponent, "inf",
// "nan"; surrounding white space. ASCII digits only.
std::optional<double> PythonFloat(std::string_view text);

// str(int(x)) of a finite double: every digit, truncated towards zero.
std::string PythonInt(double x);

// |x - round(x)| <= 1e-7; false for infinities and NaN.
bool IsNearInteger(double x);

// str(int(text)) == text.
bool IsCanonicalInteger(std::string_view text);

}  // namespace orrery::rewards

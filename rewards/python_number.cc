#include "rewards/python_number.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "rewards/text.h"

namespace orrery::rewards {
namespace {

// Without underscores; nullopt where one is not between two digits.
std::optional<std::string> DropUnderscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !IsDigit(text[i - 1]) || !IsDigit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<double> NamedValue(std::string_view lower) {
  if (lower == "inf" || lower == "infinity") return std::numeric_limits<double>::infinity();
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// from_chars says "out of range" for both ends; the decimal exponent tells which.
double OutOfRange(std::string_view digits) {
  const size_t e = digits.find_first_of("eE");
  const bool tiny = e != std::string_view::npos && e + 1 < digits.size() && digits[e + 1] == '-';
  const bool zero_point = digits.starts_with("0.") || digits.starts_with(".");
  return tiny || (zero_point && e == std::string_view::npos)
             ? 0.0
             : std::numeric_limits<double>::infinity();
}

}  // namespace

std::optional<double> PythonFloat(std::string_view text) {
  const std::optional<std::string> plain = DropUnderscores(Strip(text));
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  double sign = 1;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    sign = digits[0] == '-' ? -1 : 1;
    digits.remove_prefix(1);
  }
  if (digits.empty()) return std::nullopt;
  if (!IsDigit(digits[0]) && digits[0] != '.') {
    const std::optional<double> named = NamedValue(Lowercase(digits));
    return named ? std::optional(sign * *named) : std::nullopt;
  }
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return std::nullopt;
  return sign * (error == std::errc() ? value : OutOfRange(digits));
}

std::string PythonInt(double x) {
  const std::string digits = fmt::format("{:.0f}", std::trunc(x));
  return digits == "-0" ? "0" : digits;
}

bool IsNearInteger(double x) { return std::isfinite(x) && std::abs(x - std::round(x)) <= 1e-7; }

bool IsCanonicalInteger(std::string_view text) {
  if (text == "0") return true;
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || text[0] == '0') return false;
  for (const char c : text) {
    if (!IsDigit(c)) return false;
  }
  return true;
}

}  // namespace orrery::rewards

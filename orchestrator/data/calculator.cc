#include "orchestrator/data/calculator.h"

#include <charconv>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::data {
namespace {

constexpr size_t kMaxLength = 200;  // also bounds the depth of recursion

// Recursive descent: sum of products of factors.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<int64_t> Whole() {
    ASSIGN_OR_RETURN(const int64_t value, Sum());
    Peek();
    if (!text_.empty()) return Unexpected();
    return value;
  }

 private:
  char Peek() {
    while (!text_.empty() && text_.front() == ' ') text_.remove_prefix(1);
    return text_.empty() ? '\0' : text_.front();
  }

  absl::Status Unexpected() {
    Peek();
    if (text_.empty()) return InvalidInput("the expression ends too early");
    return InvalidInput("unexpected '{}'", ShortenUtf8(text_, 1));
  }

  absl::StatusOr<int64_t> Sum() {
    ASSIGN_OR_RETURN(int64_t value, Product());
    while (Peek() == '+' || Peek() == '-') {
      const char operation = text_.front();
      text_.remove_prefix(1);
      ASSIGN_OR_RETURN(const int64_t other, Product());
      ASSIGN_OR_RETURN(value, Apply(value, operation, other));
    }
    return value;
  }

  absl::StatusOr<int64_t> Product() {
    ASSIGN_OR_RETURN(int64_t value, Factor());
    while (Peek() == '*' || Peek() == '/') {
      const char operation = text_.front();
      text_.remove_prefix(1);
      ASSIGN_OR_RETURN(const int64_t other, Factor());
      ASSIGN_OR_RETURN(value, Apply(value, operation, other));
    }
    return value;
  }

  absl::StatusOr<int64_t> Factor() {
    const char c = Peek();
    if (c == '-') {
      text_.remove_prefix(1);
      ASSIGN_OR_RETURN(const int64_t value, Factor());
      return Apply(0, '-', value);
    }
    if (c == '(') {
      text_.remove_prefix(1);
      ASSIGN_OR_RETURN(const int64_t value, Sum());
      if (Peek() != ')') return Unexpected();
      text_.remove_prefix(1);
      return value;
    }
    return Number();
  }

  absl::StatusOr<int64_t> Number() {
    const char c = Peek();
    if (c < '0' || c > '9') return Unexpected();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) return InvalidInput("a number is too large");
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return value;
  }

  static absl::StatusOr<int64_t> Apply(int64_t a, char operation, int64_t b) {
    if (operation == '/') return Divide(a, b);
    int64_t value = 0;
    const bool overflow = operation == '+'   ? __builtin_add_overflow(a, b, &value)
                          : operation == '-' ? __builtin_sub_overflow(a, b, &value)
                                             : __builtin_mul_overflow(a, b, &value);
    if (overflow) return InvalidInput("{}{}{} is too large", a, operation, b);
    return value;
  }

  static absl::StatusOr<int64_t> Divide(int64_t a, int64_t b) {
    if (b == 0) return InvalidInput("{}/0 has no value", a);
    if (b == -1) return Apply(0, '-', a);  // the one quotient that overflows
    if (a % b != 0) return InvalidInput("{}/{} is not a whole number", a, b);
    return a / b;
  }

  std::string_view text_;
};

}  // namespace

absl::StatusOr<int64_t> Calculate(std::string_view expression) {
  if (expression.size() > kMaxLength) {
    return InvalidInput("the expression has more than {} characters", kMaxLength);
  }
  return Parser(expression).Whole();
}

std::string CalculatorReply(std::string_view expression) {
  const absl::StatusOr<int64_t> value = Calculate(expression);
  return value.ok() ? fmt::format("{}", *value) : "error: " + StatusText(value.status());
}

}  // namespace orrery::data

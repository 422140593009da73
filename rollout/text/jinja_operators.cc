#include "rollout/text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

const char* Show(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSubtract:
      return "-";
    case BinaryOperator::kMultiply:
      return "*";
    case BinaryOperator::kDivide:
      return "/";
    case BinaryOperator::kFloorDivide:
      return "//";
    case BinaryOperator::kModulo:
      return "%";
    case BinaryOperator::kPower:
      return "**";
  }
  return "?";
}

absl::Status Unsupported(BinaryOperator op, const Value& left, const Value& right) {
  return InvalidInput("cannot compute {} {} {}", left.type_name(), Show(op), right.type_name());
}

absl::Status Overflow(BinaryOperator op) {
  return InvalidInput("the result of {} does not fit a 64-bit integer", Show(op));
}

// Python rounds the quotient down; the remainder has the sign of the divisor.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double FloatModulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0)
    return Value::Of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (base == 0 || base == 1) return Value::Of(exponent > 0 ? base : result);
    if (base == -1) return Value::Of(int64_t{exponent % 2 == 0 ? 1 : -1});
    if (__builtin_mul_overflow(result, base, &result)) return Overflow(BinaryOperator::kPower);
  }
  return Value::Of(result);
}

absl::StatusOr<Value> ComputeIntegers(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOperator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::kDivide:
      return Value::Of(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOperator::kFloorDivide:
      overflow = a == std::numeric_limits<int64_t>::min() && b == -1;
      if (!overflow) result = FloorDivide(a, b);
      break;
    case BinaryOperator::kModulo:
      result = b == -1 ? 0 : a - FloorDivide(a, b) * b;
      break;
    case BinaryOperator::kPower:
      return IntegerPower(a, b);
  }
  if (overflow) return Overflow(op);
  return Value::Of(result);
}

absl::StatusOr<Value> ComputeDoubles(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::Of(a + b);
    case BinaryOperator::kSubtract:
      return Value::Of(a - b);
    case BinaryOperator::kMultiply:
      return Value::Of(a * b);
    case BinaryOperator::kDivide:
      return Value::Of(a / b);
    case BinaryOperator::kFloorDivide:
      return Value::Of(std::floor(a / b));
    case BinaryOperator::kModulo:
      return Value::Of(FloatModulo(a, b));
    case BinaryOperator::kPower:
      break;
  }
  const double power = std::pow(a, b);
  if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
    return InvalidInput("{} ** {} is not a real number", a, b);
  }
  return Value::Of(power);
}

absl::StatusOr<Value> ComputeNumbers(BinaryOperator op, const Value& left, const Value& right) {
  const bool divides = op == BinaryOperator::kDivide || op == BinaryOperator::kFloorDivide ||
                       op == BinaryOperator::kModulo;
  const bool zero_power =
      op == BinaryOperator::kPower && ToDouble(left) == 0 && ToDouble(right) < 0;
  if ((divides && ToDouble(right) == 0) || zero_power) return InvalidInput("division by zero");
  if (left.Is(Kind::kFloat) || right.Is(Kind::kFloat)) {
    return ComputeDoubles(op, ToDouble(left), ToDouble(right));
  }
  return ComputeIntegers(op, ToInteger(left), ToInteger(right));
}

// A text that went through `safe` escapes what it is joined with (markupsafe.Markup.__add__).
absl::StatusOr<Value> AddTexts(const Value& left, const Value& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Allocate(left.text().size() + right.text().size()));
  if (left.markup() == right.markup()) {
    return Value::Of(left.text() + right.text(), left.markup());
  }
  const std::string joined = left.markup() ? left.text() + EscapeHtml(right.text())
                                           : EscapeHtml(left.text()) + right.text();
  return Value::Of(joined, true);
}

absl::StatusOr<Value> AddLists(const List& left, const List& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Allocate((left.items.size() + right.items.size()) * sizeof(Value)));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return MakeList(std::move(items), left.kind);
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const size_t size =
      value.Is(Kind::kText) ? value.text().size() : value.list().items.size() * sizeof(Value);
  if (size > 0 && count > budget.limits().max_allocated_bytes / size) {
    return Exhausted("repeating {} bytes {} times exceeds the limit of a template", size, count);
  }
  RETURN_IF_ERROR(budget.Allocate(size * count));
  if (value.Is(Kind::kText)) {
    std::string text;
    for (size_t i = 0; size > 0 && i < count; ++i) text += value.text();
    return Value::Of(std::move(text), value.markup());
  }
  std::vector<Value> items;
  for (size_t i = 0; size > 0 && i < count; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return MakeList(std::move(items), value.list().kind);
}

}  // namespace

absl::StatusOr<Value> Compute(BinaryOperator op, const Value& left, const Value& right,
                              Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(left));
  RETURN_IF_ERROR(CheckDefined(right));
  if (IsNumber(left) && IsNumber(right)) return ComputeNumbers(op, left, right);
  if (op == BinaryOperator::kAdd) {
    if (left.Is(Kind::kText) && right.Is(Kind::kText)) return AddTexts(left, right, budget);
    if (IsPlainList(left) && IsPlainList(right) && left.list().kind == right.list().kind) {
      return AddLists(left.list(), right.list(), budget);
    }
  }
  if (op == BinaryOperator::kMultiply) {
    if ((left.Is(Kind::kText) || IsPlainList(left)) && IsIntegral(right)) {
      return Repeat(left, ToInteger(right), budget);
    }
    if ((right.Is(Kind::kText) || IsPlainList(right)) && IsIntegral(left)) {
      return Repeat(right, ToInteger(left), budget);
    }
  }
  return Unsupported(op, left, right);
}

absl::StatusOr<Value> ApplySign(const Value& value, bool negative) {
  RETURN_IF_ERROR(CheckDefined(value));
  if (value.Is(Kind::kFloat)) return Value::Of(negative ? -value.floating() : value.floating());
  if (!IsIntegral(value)) {
    return InvalidInput("expected a number after the sign, found a {}", value.type_name());
  }
  return negative ? ComputeIntegers(BinaryOperator::kSubtract, 0, ToInteger(value))
                  : Value::Of(ToInteger(value));
}

namespace {

absl::StatusOr<bool> ListLess(const List& left, const List& right, Budget& budget) {
  const size_t common = std::min(left.items.size(), right.items.size());
  for (size_t i = 0; i < common; ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equals(left.items[i], right.items[i], budget));
    if (!equal) return IsLess(left.items[i], right.items[i], budget);
  }
  return left.items.size() < right.items.size();
}

absl::StatusOr<bool> InText(const Value& wanted, const std::string& text, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(wanted));
  if (!wanted.Is(Kind::kText)) {
    return InvalidInput("only a text can be in a text, not a {}", wanted.type_name());
  }
  RETURN_IF_ERROR(budget.Scan(text.size() + wanted.text().size()));
  return FindText(text, wanted.text()) != std::string_view::npos;
}

absl::StatusOr<bool> Contains(const Value& container, const Value& wanted, Budget& budget) {
  if (container.Is(Kind::kText)) return InText(wanted, container.text(), budget);
  if (container.Is(Kind::kMap)) {
    RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(container.map().size() / 8)));
    if (!IsHashable(wanted)) return false;
    return container.map().Find(wanted) != nullptr;
  }
  ASSIGN_OR_RETURN(const auto items, Iterate(container, budget));
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(const bool equal, Equals(item, wanted, budget));
    if (equal) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<bool> IsLess(const Value& left, const Value& right, Budget& budget) {
  RETURN_IF_ERROR(budget.Step());
  RETURN_IF_ERROR(CheckDefined(left));
  RETURN_IF_ERROR(CheckDefined(right));
  if (IsNumber(left) && IsNumber(right)) {
    const bool floating = left.Is(Kind::kFloat) || right.Is(Kind::kFloat);
    return floating ? ToDouble(left) < ToDouble(right) : ToInteger(left) < ToInteger(right);
  }
  if (left.Is(Kind::kText) && right.Is(Kind::kText)) {
    RETURN_IF_ERROR(budget.Scan(left.text().size()));
    return left.text() < right.text();  // UTF-8 sorts as its code points do
  }
  if (IsPlainList(left) && IsPlainList(right) && left.list().kind == right.list().kind) {
    return ListLess(left.list(), right.list(), budget);
  }
  return InvalidInput("cannot order a {} and a {}", left.type_name(), right.type_name());
}

absl::StatusOr<bool> CompareValues(CompareOperator op, const Value& left, const Value& right,
                                   Budget& budget) {
  const auto negate = [](absl::StatusOr<bool> result) {
    if (result.ok()) result = !*result;
    return result;
  };
  switch (op) {
    case CompareOperator::kEqual:
      return Equals(left, right, budget);
    case CompareOperator::kNotEqual:
      return negate(Equals(left, right, budget));
    case CompareOperator::kLess:
      return IsLess(left, right, budget);
    case CompareOperator::kGreater:
      return IsLess(right, left, budget);
    case CompareOperator::kIn:
      return Contains(right, left, budget);
    case CompareOperator::kNotIn:
      return negate(Contains(right, left, budget));
    case CompareOperator::kLessEqual:
    case CompareOperator::kGreaterEqual:
      break;
  }
  // Not the negation of the opposite: both are false for NaN.
  const bool swapped = op == CompareOperator::kGreaterEqual;
  ASSIGN_OR_RETURN(const bool less,
                   swapped ? IsLess(right, left, budget) : IsLess(left, right, budget));
  if (less) return true;
  return Equals(left, right, budget);
}

}  // namespace orrery::rollout::jinja

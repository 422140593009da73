#include "rollout/text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

absl::Status CheckDefined(const Value& value) {
  if (!value.Is(Kind::kUndefined)) return absl::OkStatus();
  return InvalidInput("{}", value.hint());
}

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

bool IsPlainList(const Value& value) {
  return value.Is(Kind::kList) && value.list().kind <= ListKind::kTuple;
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

bool IsIntegral(const Value& value) { return value.Is(Kind::kInteger) || value.Is(Kind::kBool); }

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

namespace {

Value MissingAttribute(const Value& object, std::string_view name) {
  return Value::Missing(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

absl::StatusOr<Value> BindMethod(const Builtin& method, const Value& object) {
  if (object.depth() + 1 > kMaxValueDepth) return Exhausted("values nest too deep");
  auto callable = std::make_shared<Callable>();
  callable->builtin = &method;
  callable->self = object;
  return Value::Of(std::shared_ptr<const Callable>(std::move(callable)));
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::Of(index + 1);
  if (name == "index0") return Value::Of(index);
  if (name == "revindex") return Value::Of(size - index);
  if (name == "revindex0") return Value::Of(size - index - 1);
  if (name == "first") return Value::Of(index == 0);
  if (name == "last") return Value::Of(index + 1 == size);
  if (name == "length") return Value::Of(size);
  if (name == "depth") return Value::Of(int64_t{1});  // of recursion, which is not there
  if (name == "depth0") return Value::Of(int64_t{0});
  if (name == "previtem") {
    return index > 0 ? loop.items->items[loop.index - 1]
                     : Value::Missing("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < size ? loop.items->items[loop.index + 1]
                            : Value::Missing("there is no next item");
  }
  return Value::Missing(fmt::format("'loop' has no attribute '{}'", name));
}

// Names that the sandbox of jinja2 hides: they would change the value.
bool IsMutator(const Value& object, std::string_view name) {
  static constexpr std::string_view kOfMaps[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return object.Is(Kind::kMap) ? among(kOfMaps) : object.Is(Kind::kList) && among(kOfLists);
}

Value FindKey(const Map& map, std::string_view key) {
  const Value* found = map.Find(key);
  if (found != nullptr) return *found;
  return Value::Missing(fmt::format("'dict object' has no attribute '{}'", key));
}

// The attribute that is no key: a method, a field of a loop; undefined where there is none.
absl::StatusOr<Value> OwnAttribute(const Value& object, std::string_view name) {
  if (object.Is(Kind::kLoop)) return LoopAttribute(object.loop(), name);
  if (IsMutator(object, name)) {
    return Value::Missing(fmt::format("'{}' would change a {}, which a chat template may not", name,
                                      object.type_name()));
  }
  if (const Builtin* method = FindMethod(object, name)) return BindMethod(*method, object);
  return MissingAttribute(object, name);
}

}  // namespace

absl::StatusOr<Value> GetAttribute(const Value& object, std::string_view name, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  if (object.Is(Kind::kNamespace)) {
    const Value* found = object.space().variables.Find(name);
    return found != nullptr ? *found : MissingAttribute(object, name);
  }
  if (object.Is(Kind::kMap) && FindMethod(object, name) == nullptr && !IsMutator(object, name)) {
    RETURN_IF_ERROR(budget.Step());
    return FindKey(object.map(), name);
  }
  return OwnAttribute(object, name);
}

namespace {

// Python's index: negative ones count from the end. -1 where it is outside.
int64_t ResolveIndex(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < 0) index += count;
  return index >= 0 && index < count ? index : -1;
}

absl::StatusOr<Value> Character(const Value& text, int64_t index, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.text().size() * 8));
  const std::vector<size_t> offsets = CodePointOffsets(text.text());
  const int64_t at = ResolveIndex(index, offsets.size() - 1);
  if (at < 0) return Value::Missing(fmt::format("the text has no character {}", index));
  const auto i = static_cast<size_t>(at);
  return Value::Of(text.text().substr(offsets[i], offsets[i + 1] - offsets[i]), text.markup());
}

absl::StatusOr<Value> ByIndex(const Value& object, int64_t index, Budget& budget) {
  if (object.Is(Kind::kText)) return Character(object, index, budget);
  if (IsPlainList(object)) {
    const std::vector<Value>& items = object.list().items;
    const int64_t at = ResolveIndex(index, items.size());
    if (at >= 0) return items[static_cast<size_t>(at)];
    return Value::Missing(
        fmt::format("the {} of {} has no element {}", object.type_name(), items.size(), index));
  }
  return MissingAttribute(object, fmt::to_string(index));
}

}  // namespace

absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  if (object.Is(Kind::kMap) && IsHashable(key)) {
    RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(object.map().size() / 8)));
    const Value* found = object.map().Find(key);
    if (found != nullptr) return *found;
  }
  if (key.Is(Kind::kText)) {
    if (object.Is(Kind::kNamespace)) return GetAttribute(object, key.text(), budget);
    return OwnAttribute(object, key.text());
  }
  if (IsIntegral(key)) return ByIndex(object, ToInteger(key), budget);
  if (key.Is(Kind::kUndefined)) {
    return Value::Missing(fmt::format("the key is undefined: {}", key.hint()));
  }
  return Value::Missing(
      fmt::format("a {} has no element by a {}", object.type_name(), key.type_name()));
}

namespace {

absl::StatusOr<std::optional<int64_t>> Bound(const Value* value) {
  if (value == nullptr || value->Is(Kind::kNone)) return std::nullopt;
  RETURN_IF_ERROR(CheckDefined(*value));
  if (IsIntegral(*value)) return ToInteger(*value);
  return InvalidInput("the bounds of a slice are integers, not a {}", value->type_name());
}

// The positions start, start + step, ... (count of them): CPython's PySlice_AdjustIndices.
struct Positions {
  int64_t start;
  int64_t step;
  size_t count;
};

int64_t Clamp(int64_t bound, int64_t size, bool backwards) {
  if (bound < 0) return std::max<int64_t>(bound + size, backwards ? -1 : 0);
  return std::min(bound, backwards ? size - 1 : size);
}

Positions Resolve(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
                  size_t length) {
  const auto size = static_cast<int64_t>(length);
  const bool backwards = step < 0;
  const int64_t first = start ? Clamp(*start, size, backwards) : (backwards ? size - 1 : 0);
  const int64_t end = stop ? Clamp(*stop, size, backwards) : (backwards ? -1 : size);
  const int64_t distance = backwards ? first - end : end - first;
  // The step of -2^63 would overflow on negation; no list is that long.
  const int64_t stride = backwards ? -std::max(step, -std::numeric_limits<int64_t>::max()) : step;
  return {first, step, distance > 0 ? static_cast<size_t>((distance - 1) / stride + 1) : 0};
}

Value SliceText(const Value& text, const std::vector<size_t>& offsets, const Positions& positions) {
  std::string sliced;
  int64_t at = positions.start;
  for (size_t n = 0; n < positions.count; ++n, at += n < positions.count ? positions.step : 0) {
    const auto i = static_cast<size_t>(at);
    sliced.append(text.text(), offsets[i], offsets[i + 1] - offsets[i]);
  }
  return Value::Of(std::move(sliced), text.markup());
}

absl::StatusOr<Value> SliceList(const List& list, const Positions& positions, Budget& budget) {
  RETURN_IF_ERROR(budget.Allocate(positions.count * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(positions.count);
  int64_t at = positions.start;
  for (size_t n = 0; n < positions.count; ++n, at += n < positions.count ? positions.step : 0) {
    items.push_back(list.items[static_cast<size_t>(at)]);
  }
  return MakeList(std::move(items), list.kind);
}

}  // namespace

absl::StatusOr<Value> GetSlice(const Value& object, const Value* start, const Value* stop,
                               const Value* step, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  ASSIGN_OR_RETURN(const auto first, Bound(start));
  ASSIGN_OR_RETURN(const auto end, Bound(stop));
  ASSIGN_OR_RETURN(const auto stride, Bound(step));
  if (stride == 0) return InvalidInput("the step of a slice cannot be 0");
  if (IsPlainList(object)) {
    const size_t size = object.list().items.size();
    return SliceList(object.list(), Resolve(first, end, stride.value_or(1), size), budget);
  }
  if (!object.Is(Kind::kText)) {
    return InvalidInput("expected a list or a text to slice, found a {}", object.type_name());
  }
  RETURN_IF_ERROR(budget.Allocate(object.text().size() * 8));
  const std::vector<size_t> offsets = CodePointOffsets(object.text());
  return SliceText(object, offsets, Resolve(first, end, stride.value_or(1), offsets.size() - 1));
}

}  // namespace orrery::rollout::jinja

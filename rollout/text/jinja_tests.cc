// What may stand behind `is`.
#include "rollout/text/jinja_arguments.h"
#include "rollout/text/jinja_operators.h"

namespace orrery::rollout::jinja {

namespace {

using Result = absl::StatusOr<Value>;

// A test without arguments.
template <bool (*predicate)(const Value&)>
Result Unary(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  return Value::Of(predicate(input));
}

// A test against one other value.
template <CompareOperator op>
Result Comparison(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"other"}, 1));
  ASSIGN_OR_RETURN(const bool holds, CompareValues(op, input, *bound[0], runtime.budget));
  return Value::Of(holds);
}

bool IsDefined(const Value& value) { return !value.Is(Kind::kUndefined); }
bool IsUndefined(const Value& value) { return value.Is(Kind::kUndefined); }
bool IsNone(const Value& value) { return value.Is(Kind::kNone); }
bool IsText(const Value& value) { return value.Is(Kind::kText); }
bool IsMapping(const Value& value) { return value.Is(Kind::kMap); }
bool IsBoolean(const Value& value) { return value.Is(Kind::kBool); }
bool IsInteger(const Value& value) {
  return value.Is(Kind::kInteger) || value.Is(Kind::kBigInteger);
}
bool IsFloat(const Value& value) { return value.Is(Kind::kFloat); }
bool IsAnyNumber(const Value& value) { return IsNumber(value) || value.Is(Kind::kBigInteger); }
bool IsTrueItself(const Value& value) { return value.Is(Kind::kBool) && value.boolean(); }
bool IsFalseItself(const Value& value) { return value.Is(Kind::kBool) && !value.boolean(); }
bool IsCallable(const Value& value) { return value.Is(Kind::kCallable); }

// Undefined has a length of 0 and can be walked, so jinja2 counts it to both.
bool IsIterable(const Value& value) {
  return value.Is(Kind::kText) || value.Is(Kind::kList) || value.Is(Kind::kMap) ||
         value.Is(Kind::kUndefined) || value.Is(Kind::kLoop);
}
bool IsSequence(const Value& value) {
  const bool positions = !value.Is(Kind::kList) || value.list().kind <= ListKind::kTuple;
  return IsIterable(value) && positions && !value.Is(Kind::kLoop);
}

template <int remainder>
Result Parity(Runtime&, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  ASSIGN_OR_RETURN(const int64_t number, IntegerOr(&input, 0, "the value"));
  return Value::Of(((number % 2) + 2) % 2 == remainder);
}

}  // namespace

const std::vector<Builtin>& Tests() {
  static const auto& table = *new std::vector<Builtin>{
      {"defined", Unary<IsDefined>},
      {"undefined", Unary<IsUndefined>},
      {"none", Unary<IsNone>},
      {"string", Unary<IsText>},
      {"mapping", Unary<IsMapping>},
      {"iterable", Unary<IsIterable>},
      {"sequence", Unary<IsSequence>},
      {"boolean", Unary<IsBoolean>},
      {"integer", Unary<IsInteger>},
      {"float", Unary<IsFloat>},
      {"number", Unary<IsAnyNumber>},
      {"true", Unary<IsTrueItself>},
      {"false", Unary<IsFalseItself>},
      {"callable", Unary<IsCallable>},
      {"odd", Parity<1>},
      {"even", Parity<0>},
      {"==", Comparison<CompareOperator::kEqual>},
      {"eq", Comparison<CompareOperator::kEqual>},
      {"equalto", Comparison<CompareOperator::kEqual>},
      {"!=", Comparison<CompareOperator::kNotEqual>},
      {"ne", Comparison<CompareOperator::kNotEqual>},
      {"<", Comparison<CompareOperator::kLess>},
      {"lt", Comparison<CompareOperator::kLess>},
      {"lessthan", Comparison<CompareOperator::kLess>},
      {"<=", Comparison<CompareOperator::kLessEqual>},
      {"le", Comparison<CompareOperator::kLessEqual>},
      {">", Comparison<CompareOperator::kGreater>},
      {"gt", Comparison<CompareOperator::kGreater>},
      {"greaterthan", Comparison<CompareOperator::kGreater>},
      {">=", Comparison<CompareOperator::kGreaterEqual>},
      {"ge", Comparison<CompareOperator::kGreaterEqual>},
      {"in", Comparison<CompareOperator::kIn>},
  };
  return table;
}

}  // namespace orrery::rollout::jinja

#include "rollout/text/jinja_eval.h"
#include "rollout/text/jinja_operators.h"

namespace orrery::rollout::jinja {

Evaluator::Result Evaluator::Evaluate(const Expression& expression) {
  const Budget::Nested nested(runtime_.budget);
  RETURN_IF_ERROR(At(expression.position, nested.Check()));
  RETURN_IF_ERROR(At(expression.position, runtime_.budget.Step()));
  return std::visit([&](const auto& node) { return Evaluate(node, expression.position); },
                    expression.node);
}

Evaluator::Result Evaluator::Evaluate(const NameNode& node, Position) {
  if (const Value* value = scope_->Find(node.name)) return *value;
  return Value::Missing(fmt::format("'{}' is undefined", NameOf(node.name)));
}

Evaluator::Result Evaluator::Evaluate(const ListNode& node, Position position) {
  RETURN_IF_ERROR(At(position, runtime_.budget.Allocate(node.items.size() * sizeof(Value))));
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionPtr& item : node.items) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*item));
    items.push_back(std::move(value));
  }
  return At(position, MakeList(std::move(items), node.kind));
}

Evaluator::Result Evaluator::Evaluate(const MapNode& node, Position position) {
  RETURN_IF_ERROR(At(position, runtime_.budget.Allocate(node.entries.size() * sizeof(Value) * 4)));
  Map map;
  for (const auto& [key_node, value_node] : node.entries) {
    ASSIGN_OR_RETURN(Value key, Evaluate(*key_node));
    ASSIGN_OR_RETURN(Value value, Evaluate(*value_node));
    if (!IsHashable(key)) {
      return At(key_node->position,
                InvalidInput("expected a text or a number as key, found a {}", key.type_name()));
    }
    map.Set(std::move(key), std::move(value));
  }
  return At(position, MakeMap(std::move(map)));
}

Evaluator::Result Evaluator::Evaluate(const NotNode& node, Position) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*node.operand));
  return Value::Of(!IsTrue(value));
}

Evaluator::Result Evaluator::Evaluate(const SignNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*node.operand));
  return At(position, ApplySign(value, node.negative));
}

Evaluator::Result Evaluator::Evaluate(const BinaryNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value left, Evaluate(*node.left));
  ASSIGN_OR_RETURN(const Value right, Evaluate(*node.right));
  return At(position, Compute(node.op, left, right, runtime_.budget));
}

Evaluator::Result Evaluator::Evaluate(const LogicNode& node, Position) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*node.left));
  if (IsTrue(left) != node.is_and) return left;
  return Evaluate(*node.right);
}

Evaluator::Result Evaluator::Evaluate(const ConcatNode& node, Position position) {
  std::string joined;
  for (const ExpressionPtr& part : node.parts) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    ASSIGN_OR_RETURN(const std::string text, At(part->position, ToText(value, runtime_.budget)));
    RETURN_IF_ERROR(At(position, runtime_.budget.Allocate(text.size())));
    joined += text;
  }
  return Value::Of(std::move(joined));
}

Evaluator::Result Evaluator::Evaluate(const CompareNode& node, Position position) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*node.first));
  for (const auto& [op, operand] : node.rest) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*operand));
    ASSIGN_OR_RETURN(const bool holds,
                     At(position, CompareValues(op, left, right, runtime_.budget)));
    if (!holds) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

Evaluator::Result Evaluator::Evaluate(const ConditionalNode& node, Position) {
  ASSIGN_OR_RETURN(const Value test, Evaluate(*node.test));
  if (IsTrue(test)) return Evaluate(*node.then);
  if (node.otherwise != nullptr) return Evaluate(*node.otherwise);
  return Value::Missing("the condition of an 'if' without 'else' is false");
}

Evaluator::Result Evaluator::Evaluate(const AttributeNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  return At(position, GetAttribute(object, node.name, runtime_.budget));
}

Evaluator::Result Evaluator::Evaluate(const ItemNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  ASSIGN_OR_RETURN(const Value key, Evaluate(*node.key));
  return At(position, GetItem(object, key, runtime_.budget));
}

Evaluator::Result Evaluator::Evaluate(const SliceNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  std::optional<Value> bounds[3];
  const ExpressionPtr* nodes[3] = {&node.start, &node.stop, &node.step};
  for (size_t i = 0; i < 3; ++i) {
    if (*nodes[i] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], Evaluate(**nodes[i]));
  }
  const auto pointer = [&](size_t i) { return bounds[i] ? &*bounds[i] : nullptr; };
  return At(position, GetSlice(object, pointer(0), pointer(1), pointer(2), runtime_.budget));
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const ArgumentNodes& nodes) {
  Arguments arguments;
  for (const ExpressionPtr& node : nodes.positional) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*node));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : nodes.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*node));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Evaluator::Result Evaluator::CallBuiltin(const Builtin& builtin, std::string_view kind,
                                         const Value& input, const Arguments& arguments,
                                         Position position) {
  auto result = builtin.function(runtime_, input, arguments);
  if (result.ok() || builtin.name == "raise_exception") return At(position, std::move(result));
  return At(position, Annotate(result.status(), fmt::format("{} '{}'", kind, builtin.name)));
}

Evaluator::Result Evaluator::Evaluate(const CallNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value callee, Evaluate(*node.callee));
  if (!callee.Is(Kind::kCallable)) {
    if (callee.Is(Kind::kUndefined)) return At(position, InvalidInput("{}", callee.hint()));
    return At(position, InvalidInput("expected a function, found a {}", callee.type_name()));
  }
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(node.arguments));
  const Callable& callable = callee.callable();
  if (callable.macro != nullptr) return CallMacro(callable, std::move(arguments), position);
  const bool method = !callable.self.Is(Kind::kUndefined);
  return CallBuiltin(*callable.builtin, method ? "method" : "function", callable.self, arguments,
                     position);
}

Evaluator::Result Evaluator::Evaluate(const FilterNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value input, Evaluate(*node.input));
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  return ApplyFilter(node.filter, input, arguments, position);
}

Evaluator::Result Evaluator::ApplyFilter(const BuiltinName& filter, const Value& input,
                                         const Arguments& arguments, Position position) {
  if (filter.builtin == nullptr) return At(position, InvalidInput("{}", NoSuchFilter(filter.name)));
  return CallBuiltin(*filter.builtin, "filter", input, arguments, position);
}

Evaluator::Result Evaluator::Evaluate(const TestNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value input, Evaluate(*node.input));
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  if (node.test.builtin == nullptr) {
    return At(position, InvalidInput("{}", NoSuchTest(node.test.name)));
  }
  ASSIGN_OR_RETURN(const Value holds,
                   CallBuiltin(*node.test.builtin, "test", input, arguments, position));
  return Value::Of(IsTrue(holds) != node.negated);
}

}  // namespace orrery::rollout::jinja

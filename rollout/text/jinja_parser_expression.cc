// Operators, by rising precedence.
#include "rollout/text/jinja_parser_base.h"

namespace orrery::rollout::jinja {

ExpressionParser::Parsed ExpressionParser::ParseTuple(bool with_condition, bool in_parentheses) {
  const Position position = Current().position;
  std::vector<ExpressionPtr> items;
  bool comma = false;
  const auto at_end = [&] {
    return At(TokenType::kVariableEnd) || At(TokenType::kBlockEnd) || AtOperator(")") ||
           AtOperator("=");
  };
  while (!at_end()) {
    ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression(with_condition));
    items.push_back(std::move(item));
    comma = SkipOperator(",");
    if (!comma) break;
  }
  if (items.size() == 1 && !comma) return std::move(items[0]);
  if (items.empty() && !in_parentheses) return Expected("an expression");
  return Make(position, ListNode{std::move(items), ListKind::kTuple});
}

ExpressionParser::Parsed ExpressionParser::ParseExpression(bool with_condition) {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.Check());
  return with_condition ? ParseCondition() : ParseOr();
}

ExpressionParser::Parsed ExpressionParser::ParseCondition() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
  while (SkipName("if")) {
    ASSIGN_OR_RETURN(ExpressionPtr test, ParseOr());
    ExpressionPtr otherwise;
    if (SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    ASSIGN_OR_RETURN(value, Make(position, ConditionalNode{std::move(test), std::move(value),
                                                           std::move(otherwise)}));
  }
  return value;
}

ExpressionParser::Parsed ExpressionParser::ParseOr() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
  while (SkipName("or")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
    ASSIGN_OR_RETURN(left, Make(position, LogicNode{false, std::move(left), std::move(right)}));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::ParseAnd() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
  while (SkipName("and")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
    ASSIGN_OR_RETURN(left, Make(position, LogicNode{true, std::move(left), std::move(right)}));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.Check());
  const Position position = Take().position;
  ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  return Make(position, NotNode{std::move(operand)});
}

bool ExpressionParser::TakeCompareOperator(CompareOperator& op) {
  static const std::vector<std::pair<std::string_view, CompareOperator>> kOperators = {
      {"==", CompareOperator::kEqual},  {"!=", CompareOperator::kNotEqual},
      {"<", CompareOperator::kLess},    {"<=", CompareOperator::kLessEqual},
      {">", CompareOperator::kGreater}, {">=", CompareOperator::kGreaterEqual}};
  for (const auto& [shown, meaning] : kOperators) {
    if (!SkipOperator(shown)) continue;
    op = meaning;
    return true;
  }
  if (SkipName("in")) {
    op = CompareOperator::kIn;
    return true;
  }
  if (!AtName("not") || Next().type != TokenType::kName || Next().text != "in") return false;
  Take();
  Take();
  op = CompareOperator::kNotIn;
  return true;
}

ExpressionParser::Parsed ExpressionParser::ParseCompare() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
  CompareNode node;
  CompareOperator op;
  while (TakeCompareOperator(op)) {
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSum());
    node.rest.emplace_back(op, std::move(operand));
  }
  if (node.rest.empty()) return first;
  node.first = std::move(first);
  return Make(position, std::move(node));
}

bool ExpressionParser::TakeBinaryOperator(
    const std::vector<std::pair<std::string_view, BinaryOperator>>& among, BinaryOperator& op) {
  for (const auto& [shown, meaning] : among) {
    if (!SkipOperator(shown)) continue;
    op = meaning;
    return true;
  }
  return false;
}

// The precedence is jinja2's, where `~` binds tighter than `+` and looser than `*`.
ExpressionParser::Parsed ExpressionParser::ParseSum() {
  static const std::vector<std::pair<std::string_view, BinaryOperator>> kOperators = {
      {"+", BinaryOperator::kAdd}, {"-", BinaryOperator::kSubtract}};
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
  BinaryOperator op;
  for (Position position = Current().position; TakeBinaryOperator(kOperators, op);
       position = Current().position) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
    ASSIGN_OR_RETURN(left, Make(position, BinaryNode{op, std::move(left), std::move(right)}));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::ParseConcat() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
  if (!AtOperator("~")) return first;
  ConcatNode node;
  node.parts.push_back(std::move(first));
  while (SkipOperator("~")) {
    ASSIGN_OR_RETURN(ExpressionPtr part, ParseProduct());
    node.parts.push_back(std::move(part));
  }
  return Make(position, std::move(node));
}

ExpressionParser::Parsed ExpressionParser::ParseProduct() {
  static const std::vector<std::pair<std::string_view, BinaryOperator>> kOperators = {
      {"*", BinaryOperator::kMultiply},
      {"/", BinaryOperator::kDivide},
      {"//", BinaryOperator::kFloorDivide},
      {"%", BinaryOperator::kModulo}};
  ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  BinaryOperator op;
  for (Position position = Current().position; TakeBinaryOperator(kOperators, op);
       position = Current().position) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
    ASSIGN_OR_RETURN(left, Make(position, BinaryNode{op, std::move(left), std::move(right)}));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::ParsePower() {
  const Position position = Current().position;
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(true));
  while (SkipOperator("**")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(true));
    ASSIGN_OR_RETURN(left, Make(position, BinaryNode{BinaryOperator::kPower, std::move(left),
                                                     std::move(right)}));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::ParseUnary(bool with_filters) {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.Check());
  const Position position = Current().position;
  ExpressionPtr expression;
  if (AtOperator("-") || AtOperator("+")) {
    const bool negative = Take().text == "-";
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(false));
    ASSIGN_OR_RETURN(expression, Make(position, SignNode{std::move(operand), negative}));
  } else {
    ASSIGN_OR_RETURN(expression, ParsePrimary());
  }
  ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
  if (!with_filters) return expression;
  return ParseFiltersAndTests(std::move(expression));
}

}  // namespace orrery::rollout::jinja

#include <charconv>
#include <cmath>

#include "rollout/text/jinja_builtins.h"
#include "rollout/text/jinja_parser_base.h"

namespace orrery::rollout::jinja {

namespace {

constexpr int kMaxNesting = 100;    // brackets, blocks and prefix operators, as the parser recurses
constexpr int kMaxTreeDepth = 250;  // of a chain such as a + b + c, which grows without recursion

int DepthOf(const ExpressionPtr& expression) { return expression ? expression->depth : 0; }

int DepthOf(const std::vector<ExpressionPtr>& expressions) {
  int depth = 0;
  for (const ExpressionPtr& expression : expressions) depth = std::max(depth, DepthOf(expression));
  return depth;
}

int DepthOf(const ArgumentNodes& arguments) {
  int depth = DepthOf(arguments.positional);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, DepthOf(value));
  return depth;
}

int DepthBelow(const LiteralNode&) { return 0; }
int DepthBelow(const NameNode&) { return 0; }
int DepthBelow(const ListNode& node) { return DepthOf(node.items); }
int DepthBelow(const MapNode& node) {
  int depth = 0;
  for (const auto& [key, value] : node.entries) {
    depth = std::max({depth, DepthOf(key), DepthOf(value)});
  }
  return depth;
}
int DepthBelow(const NotNode& node) { return DepthOf(node.operand); }
int DepthBelow(const SignNode& node) { return DepthOf(node.operand); }
int DepthBelow(const BinaryNode& node) { return std::max(DepthOf(node.left), DepthOf(node.right)); }
int DepthBelow(const LogicNode& node) { return std::max(DepthOf(node.left), DepthOf(node.right)); }
int DepthBelow(const ConcatNode& node) { return DepthOf(node.parts); }
int DepthBelow(const CompareNode& node) {
  int depth = DepthOf(node.first);
  for (const auto& [op, operand] : node.rest) depth = std::max(depth, DepthOf(operand));
  return depth;
}
int DepthBelow(const ConditionalNode& node) {
  return std::max({DepthOf(node.test), DepthOf(node.then), DepthOf(node.otherwise)});
}
int DepthBelow(const AttributeNode& node) { return DepthOf(node.object); }
int DepthBelow(const ItemNode& node) { return std::max(DepthOf(node.object), DepthOf(node.key)); }
int DepthBelow(const SliceNode& node) {
  return std::max(
      {DepthOf(node.object), DepthOf(node.start), DepthOf(node.stop), DepthOf(node.step)});
}
int DepthBelow(const CallNode& node) {
  return std::max(DepthOf(node.callee), DepthOf(node.arguments));
}
int DepthBelow(const FilterNode& node) {
  return std::max(DepthOf(node.input), DepthOf(node.arguments));
}
int DepthBelow(const TestNode& node) {
  return std::max(DepthOf(node.input), DepthOf(node.arguments));
}

}  // namespace

template <typename Node>
ExpressionParser::Parsed ExpressionParser::Make(Position position, Node node) {
  auto expression = std::make_unique<Expression>();
  expression->position = position;
  expression->depth = DepthBelow(node) + 1;
  if (expression->depth > kMaxTreeDepth) {
    return ErrorAt(position, fmt::format("the expression has more than {} levels", kMaxTreeDepth));
  }
  expression->node = std::move(node);
  return ExpressionPtr(std::move(expression));
}

absl::Status ExpressionParser::Nesting::Check() const {
  if (parser_.nesting_ <= kMaxNesting) return absl::OkStatus();
  return parser_.ErrorAt(parser_.Current().position,
                         fmt::format("nests deeper than {} levels", kMaxNesting));
}

absl::Status ExpressionParser::ErrorAt(Position position, std::string_view problem) const {
  return InvalidInput("{}: {}", ShowPlace(program_.template_name, position), problem);
}

absl::Status ExpressionParser::Expected(std::string_view what) const {
  return ErrorAt(Current().position,
                 fmt::format("expected {}, found {}", what, ShowToken(Current())));
}

absl::Status ExpressionParser::ExpectOperator(std::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Expected(fmt::format("'{}'", op));
}

absl::StatusOr<Token> ExpressionParser::ExpectName(std::string_view what) {
  if (!At(TokenType::kName)) return Expected(what);
  return Take();
}

absl::Status ExpressionParser::Expect(TokenType type, std::string_view shown) {
  if (!At(type)) return Expected(shown);
  Take();
  return absl::OkStatus();
}

int ExpressionParser::NameNumber(const std::string& name) {
  const auto [entry, is_new] = numbers_.emplace(name, static_cast<int>(program_.names.size()));
  if (is_new) program_.names.push_back(name);
  return entry->second;
}

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

ExpressionParser::Parsed ExpressionParser::ParsePrimary() {
  switch (Current().type) {
    case TokenType::kName:
      return ParseNameOrConstant();
    case TokenType::kText:
      return ParseTexts();
    case TokenType::kInteger:
    case TokenType::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (AtOperator("[")) return ParseListLiteral();
  if (AtOperator("{")) return ParseMapLiteral();
  if (!SkipOperator("(")) return Expected("an expression");
  ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple(true, true));
  RETURN_IF_ERROR(ExpectOperator(")"));
  return inner;
}

ExpressionParser::Parsed ExpressionParser::ParseNameOrConstant() {
  const Token name = Take();
  const std::string& text = name.text;
  if (text == "true" || text == "True") return Make(name.position, LiteralNode{Value::Of(true)});
  if (text == "false" || text == "False") return Make(name.position, LiteralNode{Value::Of(false)});
  if (text == "none" || text == "None") return Make(name.position, LiteralNode{Value::OfNone()});
  for (const std::string_view keyword : {"and", "or", "not", "in", "is", "if", "else"}) {
    if (text != keyword) continue;
    return ErrorAt(name.position, fmt::format("expected an expression, found '{}'", text));
  }
  return Make(name.position, NameNode{NameNumber(text)});
}

ExpressionParser::Parsed ExpressionParser::ParseNumber() {
  const Token number = Take();
  const char* begin = number.text.data();
  const char* end = begin + number.text.size();
  if (number.type == TokenType::kInteger) {
    int64_t integer = 0;
    if (std::from_chars(begin, end, integer).ec != std::errc()) {
      return ErrorAt(number.position, fmt::format("{} does not fit 64 bits", number.text));
    }
    return Make(number.position, LiteralNode{Value::Of(integer)});
  }
  double floating = 0;
  if (std::from_chars(begin, end, floating).ec != std::errc()) {
    return ErrorAt(number.position, fmt::format("{} does not fit a double", number.text));
  }
  return Make(number.position, LiteralNode{Value::Of(floating)});
}

// 'a' "b" is one text, as in Python.
ExpressionParser::Parsed ExpressionParser::ParseTexts() {
  const Position position = Current().position;
  std::string text;
  while (At(TokenType::kText)) text += Take().text;
  return Make(position, LiteralNode{Value::Of(std::move(text))});
}

ExpressionParser::Parsed ExpressionParser::ParseListLiteral() {
  const Position position = Take().position;
  ListNode node{{}, ListKind::kList};
  while (!AtOperator("]")) {
    if (!node.items.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("]")) break;
    ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    node.items.push_back(std::move(item));
  }
  RETURN_IF_ERROR(ExpectOperator("]"));
  return Make(position, std::move(node));
}

ExpressionParser::Parsed ExpressionParser::ParseMapLiteral() {
  const Position position = Take().position;
  MapNode node;
  while (!AtOperator("}")) {
    if (!node.entries.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("}")) break;
    ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    node.entries.emplace_back(std::move(key), std::move(value));
  }
  RETURN_IF_ERROR(ExpectOperator("}"));
  return Make(position, std::move(node));
}

ExpressionParser::Parsed ExpressionParser::ParsePostfix(ExpressionPtr object) {
  while (true) {
    if (AtOperator(".")) {
      ASSIGN_OR_RETURN(object, ParseAttribute(std::move(object)));
    } else if (AtOperator("[")) {
      ASSIGN_OR_RETURN(object, ParseSubscript(std::move(object)));
    } else if (AtOperator("(")) {
      ASSIGN_OR_RETURN(object, ParseCall(std::move(object)));
    } else {
      return object;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::ParseFiltersAndTests(ExpressionPtr input) {
  while (true) {
    const Position position = Current().position;
    if (SkipOperator("|")) {
      ASSIGN_OR_RETURN(auto filter, ParseFilterName());
      ASSIGN_OR_RETURN(input, Make(position, FilterNode{std::move(input), std::move(filter.first),
                                                        std::move(filter.second)}));
    } else if (AtName("is")) {
      ASSIGN_OR_RETURN(input, ParseTest(std::move(input)));
    } else if (AtOperator("(")) {
      ASSIGN_OR_RETURN(input, ParseCall(std::move(input)));
    } else {
      return input;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::ParseAttribute(ExpressionPtr object) {
  Take();
  const Position position = Current().position;
  if (At(TokenType::kInteger)) {
    ASSIGN_OR_RETURN(ExpressionPtr key, ParseNumber());
    return Make(position, ItemNode{std::move(object), std::move(key)});
  }
  ASSIGN_OR_RETURN(Token name, ExpectName("the name of an attribute"));
  return Make(position, AttributeNode{std::move(object), std::move(name.text)});
}

ExpressionParser::Parsed ExpressionParser::ParseSliceBound() {
  if (AtOperator(":") || AtOperator("]")) return ExpressionPtr();
  return ParseExpression();
}

ExpressionParser::Parsed ExpressionParser::ParseSubscript(ExpressionPtr object) {
  const Position position = Take().position;
  ASSIGN_OR_RETURN(ExpressionPtr key, ParseSliceBound());
  if (AtOperator(":")) return ParseSlice(std::move(object), std::move(key), position);
  if (key == nullptr) return Expected("an index, a key or a slice");
  RETURN_IF_ERROR(ExpectOperator("]"));
  return Make(position, ItemNode{std::move(object), std::move(key)});
}

ExpressionParser::Parsed ExpressionParser::ParseSlice(ExpressionPtr object, ExpressionPtr start,
                                                      Position position) {
  RETURN_IF_ERROR(ExpectOperator(":"));
  ASSIGN_OR_RETURN(ExpressionPtr stop, ParseSliceBound());
  ExpressionPtr step;
  if (SkipOperator(":")) {
    ASSIGN_OR_RETURN(step, ParseSliceBound());
  }
  RETURN_IF_ERROR(ExpectOperator("]"));
  return Make(position,
              SliceNode{std::move(object), std::move(start), std::move(stop), std::move(step)});
}

ExpressionParser::Parsed ExpressionParser::ParseCall(ExpressionPtr callee) {
  const Position position = callee->position;
  ASSIGN_OR_RETURN(ArgumentNodes arguments, ParseArguments());
  return Make(position, CallNode{std::move(callee), std::move(arguments)});
}

absl::StatusOr<ArgumentNodes> ExpressionParser::ParseArguments() {
  RETURN_IF_ERROR(ExpectOperator("("));
  ArgumentNodes arguments;
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) RETURN_IF_ERROR(ExpectOperator(","));
    first = false;
    if (AtOperator(")")) break;
    const bool named =
        At(TokenType::kName) && Next().type == TokenType::kOperator && Next().text == "=";
    if (!named && !arguments.named.empty()) return Expected("a named argument (name=value)");
    std::string name;
    if (named) {
      name = Take().text;
      Take();
    }
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    if (named) {
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      arguments.positional.push_back(std::move(value));
    }
  }
  RETURN_IF_ERROR(ExpectOperator(")"));
  return arguments;
}

absl::StatusOr<std::pair<BuiltinName, ArgumentNodes>> ExpressionParser::ParseFilterName() {
  ASSIGN_OR_RETURN(const Token name, ExpectName("the name of a filter"));
  const Builtin* filter = FindFilter(name.text);
  if (filter == nullptr && ifs_ == 0) return ErrorAt(name.position, NoSuchFilter(name.text));
  ArgumentNodes arguments;
  if (AtOperator("(")) {
    ASSIGN_OR_RETURN(arguments, ParseArguments());
  }
  return std::make_pair(BuiltinName{filter, name.text}, std::move(arguments));
}

ExpressionParser::Parsed ExpressionParser::ParseTest(ExpressionPtr input) {
  Take();
  const bool negated = SkipName("not");
  ASSIGN_OR_RETURN(const Token name, ExpectName("the name of a test"));
  const Builtin* test = FindTest(name.text);
  if (test == nullptr && ifs_ == 0) return ErrorAt(name.position, NoSuchTest(name.text));
  if (AtName("is")) return ErrorAt(Current().position, "tests cannot be chained with 'is'");
  ASSIGN_OR_RETURN(ArgumentNodes arguments, ParseTestArguments());
  return Make(name.position, TestNode{std::move(input), BuiltinName{test, name.text},
                                      std::move(arguments), negated});
}

bool ExpressionParser::AtTestArgument() const {
  switch (Current().type) {
    case TokenType::kText:
    case TokenType::kInteger:
    case TokenType::kFloat:
      return true;
    case TokenType::kName:
      for (const std::string_view keyword : {"else", "or", "and"}) {
        if (Current().text == keyword) return false;
      }
      return true;
    case TokenType::kOperator:
      return AtOperator("[") || AtOperator("{");
    default:
      return false;
  }
}

// `is divisibleby(3)` and `is divisibleby 3` are the same.
absl::StatusOr<ArgumentNodes> ExpressionParser::ParseTestArguments() {
  if (AtOperator("(")) return ParseArguments();
  ArgumentNodes arguments;
  if (!AtTestArgument()) return arguments;
  ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
  ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
  arguments.positional.push_back(std::move(argument));
  return arguments;
}

}  // namespace orrery::rollout::jinja

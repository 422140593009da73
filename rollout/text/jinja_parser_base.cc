#include "rollout/text/jinja_parser_base.h"

#include <algorithm>

namespace orrery::rollout::jinja {

namespace {

constexpr int kMaxNesting = 100;  // brackets, blocks and prefix operators, as the parser recurses

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

ExpressionParser::Parsed ExpressionParser::Make(Position position, ExpressionNode node) {
  auto expression = std::make_unique<Expression>();
  expression->position = position;
  expression->depth = std::visit([](const auto& n) { return DepthBelow(n); }, node) + 1;
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

}  // namespace orrery::rollout::jinja

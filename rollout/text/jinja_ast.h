// The parsed template. Nodes own their children; a Program is immutable and shared by renderings.
// Every name is a number, its place in Program::names, so that scopes compare integers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rollout/text/jinja_lexer.h"
#include "rollout/text/jinja_value.h"

namespace orrery::rollout::jinja {

struct Builtin;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

struct ArgumentNodes {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

enum class BinaryOperator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};
enum class CompareOperator : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct LiteralNode {
  Value value;
};
struct NameNode {
  int name;
};
struct ListNode {
  std::vector<ExpressionPtr> items;
  ListKind kind;
};
struct MapNode {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct NotNode {
  ExpressionPtr operand;
};
struct SignNode {
  ExpressionPtr operand;
  bool negative;
};
struct BinaryNode {
  BinaryOperator op;
  ExpressionPtr left, right;
};
struct LogicNode {
  bool is_and;
  ExpressionPtr left, right;
};
struct ConcatNode {
  std::vector<ExpressionPtr> parts;
};                    // a ~ b ~ c
struct CompareNode {  // a < b in c: every neighbouring pair holds
  ExpressionPtr first;
  std::vector<std::pair<CompareOperator, ExpressionPtr>> rest;
};
struct ConditionalNode {
  ExpressionPtr test, then, otherwise;
};  // otherwise may be null
struct AttributeNode {
  ExpressionPtr object;
  std::string name;
};
struct ItemNode {
  ExpressionPtr object, key;
};
struct SliceNode {
  ExpressionPtr object, start, stop, step;
};  // the last three may be null
struct CallNode {
  ExpressionPtr callee;
  ArgumentNodes arguments;
};
// A name that is not known is an error when parsed, but inside an `if` (builtin null) only when it
// is reached, as in jinja2.
struct BuiltinName {
  const Builtin* builtin;
  std::string name;
};
struct FilterNode {
  ExpressionPtr input;
  BuiltinName filter;
  ArgumentNodes arguments;
};
struct TestNode {
  ExpressionPtr input;
  BuiltinName test;
  ArgumentNodes arguments;
  bool negated;
};

using ExpressionNode =
    std::variant<LiteralNode, NameNode, ListNode, MapNode, NotNode, SignNode, BinaryNode, LogicNode,
                 ConcatNode, CompareNode, ConditionalNode, AttributeNode, ItemNode, SliceNode,
                 CallNode, FilterNode, TestNode>;

struct Expression {
  Position position;
  int depth = 1;  // of nodes below, itself included
  ExpressionNode node;
};

// What `set` and `for` assign to: a name, an attribute of a namespace, or several targets.
struct Target {
  Position position;
  int name = 0;
  std::string attribute;      // not empty: namespace attribute
  std::vector<Target> parts;  // not empty: unpacking
};

struct DataNode {
  std::string text;
};
struct OutputNode {
  ExpressionPtr value;
};
struct IfNode {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct ForNode {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  // for x in y if condition; may be null
  Block body;
  Block otherwise;
};
struct SetNode {
  Target target;
  ExpressionPtr value;
};
struct SetBlockNode {
  Target target;
  Block body;
  std::vector<std::pair<BuiltinName, ArgumentNodes>> filters;
};
struct Macro {
  std::string label;
  int name = 0;
  std::vector<std::pair<int, ExpressionPtr>> parameters;  // name and default, which may be null
  Block body;
};
struct MacroNode {
  std::unique_ptr<const Macro> macro;
};
struct GenerationNode {
  Block body;
};  // {% generation %}: prints its body
struct BreakNode {};
struct ContinueNode {};

struct Statement {
  Position position;
  std::variant<DataNode, OutputNode, IfNode, ForNode, SetNode, SetBlockNode, MacroNode,
               GenerationNode, BreakNode, ContinueNode>
      node;
};

struct Program {
  std::string template_name;  // in errors
  std::vector<std::string> names;
  int loop_name = 0;  // of `loop` among names
  Block body;
};

}  // namespace orrery::rollout::jinja

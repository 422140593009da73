// The walk over tokens that the parsers of statements and expressions share. Internal to the
// parser.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rollout/text/jinja_ast.h"

namespace orrery::rollout::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Program& program)
      : tokens_(std::move(tokens)), program_(program) {}

  // expr, or a tuple of them: `a, b`. Without conditions, `a if b` ends before the if.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_condition, bool in_parentheses = false);
  absl::StatusOr<ExpressionPtr> ParseExpression(bool with_condition = true);
  // `| name(arguments)` once the bar is taken: the filter and its arguments.
  absl::StatusOr<std::pair<BuiltinName, ArgumentNodes>> ParseFilterName();

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token Take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool AtName(std::string_view name) const { return IsToken(TokenType::kName, name); }
  bool AtOperator(std::string_view op) const { return IsToken(TokenType::kOperator, op); }
  bool At(TokenType type) const { return Current().type == type; }
  bool SkipName(std::string_view name) { return AtName(name) && (++at_, true); }
  bool SkipOperator(std::string_view op) { return AtOperator(op) && (++at_, true); }
  absl::Status ExpectOperator(std::string_view op);
  absl::StatusOr<Token> ExpectName(std::string_view what);
  absl::Status Expect(TokenType type, std::string_view shown);

  // Between these, unknown filters and tests are left for the rendering to find.
  void EnterIf() { ++ifs_; }
  void LeaveIf() { --ifs_; }

  int NameNumber(const std::string& name);
  // "expected X, found the name 'y'" at the current token.
  absl::Status Expected(std::string_view what) const;
  absl::Status ErrorAt(Position position, std::string_view problem) const;

  // Counts recursion of the parser; hostile nesting must not exhaust the stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    absl::Status Check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  using Parsed = absl::StatusOr<ExpressionPtr>;

  Parsed ParseCondition();
  Parsed ParseOr();
  Parsed ParseAnd();
  Parsed ParseNot();
  Parsed ParseCompare();
  Parsed ParseSum();
  Parsed ParseConcat();
  Parsed ParseProduct();
  Parsed ParsePower();
  Parsed ParseUnary(bool with_filters);
  Parsed ParsePrimary();
  Parsed ParseNameOrConstant();
  Parsed ParseNumber();
  Parsed ParseTexts();
  Parsed ParseListLiteral();
  Parsed ParseMapLiteral();
  Parsed ParsePostfix(ExpressionPtr object);
  Parsed ParseFiltersAndTests(ExpressionPtr input);
  Parsed ParseAttribute(ExpressionPtr object);
  Parsed ParseSubscript(ExpressionPtr object);
  Parsed ParseSlice(ExpressionPtr object, ExpressionPtr start, Position position);
  Parsed ParseSliceBound();
  Parsed ParseCall(ExpressionPtr callee);
  Parsed ParseTest(ExpressionPtr input);
  absl::StatusOr<ArgumentNodes> ParseArguments();
  absl::StatusOr<ArgumentNodes> ParseTestArguments();
  bool AtTestArgument() const;
  bool TakeCompareOperator(CompareOperator& op);
  bool TakeBinaryOperator(const std::vector<std::pair<std::string_view, BinaryOperator>>& among,
                          BinaryOperator& op);

  Parsed Make(Position position, ExpressionNode node);

  bool IsToken(TokenType type, std::string_view text) const {
    return Current().type == type && Current().text == text;
  }

  std::vector<Token> tokens_;
  Program& program_;
  std::unordered_map<std::string, int> numbers_;
  size_t at_ = 0;
  int nesting_ = 0;
  int ifs_ = 0;  // if blocks around
};

}  // namespace orrery::rollout::jinja

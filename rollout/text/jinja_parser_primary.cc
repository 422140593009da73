// Literals, names, and what is written behind a value: attributes, subscripts, calls, filters,
// tests.
#include <charconv>

#include "rollout/text/jinja_builtins.h"
#include "rollout/text/jinja_parser_base.h"

namespace orrery::rollout::jinja {

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

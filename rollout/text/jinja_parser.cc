#include "rollout/text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "rollout/text/jinja_builtins.h"
#include "rollout/text/jinja_parser_base.h"

namespace orrery::rollout::jinja {

namespace {

constexpr size_t kMaxSourceBytes = 4 << 20;

class Parser {
 public:
  Parser(std::vector<Token> tokens, Program& program)
      : expressions_(std::move(tokens), program), program_(program) {}

  absl::Status Run() {
    program_.loop_name = expressions_.NameNumber("loop");
    ASSIGN_OR_RETURN(program_.body, ParseBlock({}, "the template"));
    return absl::OkStatus();
  }

 private:
  using Parsed = absl::StatusOr<Statement>;
  using Names = std::initializer_list<std::string_view>;

  bool AtTag(std::string_view name) const {
    return expressions_.At(TokenType::kBlockBegin) &&
           expressions_.Next().type == TokenType::kName && expressions_.Next().text == name;
  }
  bool AtAnyTag(Names names) const {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return AtTag(name); });
  }
  bool SkipTagName(std::string_view name) {
    if (!AtTag(name)) return false;
    expressions_.Take();
    expressions_.Take();
    return true;
  }
  absl::Status EndOfTag() { return expressions_.Expect(TokenType::kBlockEnd, "'%}'"); }

  // Statements up to one of the tags `ends`, which stays; the whole rest where there are none.
  absl::StatusOr<Block> ParseBlock(Names ends, std::string_view opener) {
    const ExpressionParser::Nesting nesting(expressions_);
    RETURN_IF_ERROR(nesting.Check());
    Block block;
    while (!expressions_.At(TokenType::kEnd)) {
      if (AtAnyTag(ends)) return block;
      ASSIGN_OR_RETURN(Statement statement, ParseStatement());
      block.push_back(std::move(statement));
    }
    if (ends.size() == 0) return block;
    return expressions_.Expected(fmt::format("{} to end with {}", opener, ShowTags(ends)));
  }

  static std::string ShowTags(Names names) {
    std::string shown;
    for (const std::string_view name : names) {
      if (!shown.empty()) shown += " or ";
      shown += fmt::format("{{% {} %}}", name);
    }
    return shown;
  }

  // The block and its closing tag.
  absl::StatusOr<Block> ParseBody(std::string_view end, std::string_view opener) {
    RETURN_IF_ERROR(EndOfTag());
    ASSIGN_OR_RETURN(Block body, ParseBlock({end}, opener));
    RETURN_IF_ERROR(CloseTag(end));
    return body;
  }

  absl::Status CloseTag(std::string_view end) {
    if (!SkipTagName(end)) return expressions_.Expected(fmt::format("{{% {} %}}", end));
    return EndOfTag();
  }

  Parsed ParseStatement() {
    const Position position = expressions_.Current().position;
    if (expressions_.At(TokenType::kData)) {
      return Statement{position, DataNode{expressions_.Take().text}};
    }
    if (expressions_.At(TokenType::kVariableBegin)) return ParseOutput();
    expressions_.Take();
    ASSIGN_OR_RETURN(const Token tag, expressions_.ExpectName("the name of a tag"));
    return ParseTag(tag);
  }

  Parsed ParseOutput() {
    const Position position = expressions_.Take().position;
    ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.ParseTuple(true));
    RETURN_IF_ERROR(expressions_.Expect(TokenType::kVariableEnd, "'}}' or an operator"));
    return Statement{position, OutputNode{std::move(value)}};
  }

  Parsed ParseTag(const Token& tag) {
    if (tag.text == "if") return ParseIf(tag.position);
    if (tag.text == "for") return ParseFor(tag.position);
    if (tag.text == "set") return ParseSet(tag.position);
    if (tag.text == "macro") return ParseMacro(tag.position);
    if (tag.text == "generation") return ParseGeneration(tag.position);
    if (tag.text == "break") return ParseLoopControl(tag, Statement{tag.position, BreakNode{}});
    if (tag.text == "continue")
      return ParseLoopControl(tag, Statement{tag.position, ContinueNode{}});
    if (tag.text.substr(0, 3) == "end" || tag.text == "elif" || tag.text == "else") {
      return expressions_.ErrorAt(tag.position, fmt::format("{{% {} %}} closes nothing", tag.text));
    }
    return expressions_.ErrorAt(
        tag.position, fmt::format("the tag '{}' is not supported; known are if, for, set, macro, "
                                  "break, continue, generation",
                                  tag.text));
  }

  Parsed ParseIf(Position position) {
    IfNode node;
    do {
      ASSIGN_OR_RETURN(ExpressionPtr test, expressions_.ParseTuple(false));
      RETURN_IF_ERROR(EndOfTag());
      expressions_.EnterIf();
      ASSIGN_OR_RETURN(Block body, ParseBlock({"elif", "else", "endif"}, "if"));
      expressions_.LeaveIf();
      node.branches.emplace_back(std::move(test), std::move(body));
    } while (SkipTagName("elif"));
    if (SkipTagName("else")) {
      RETURN_IF_ERROR(EndOfTag());
      expressions_.EnterIf();
      ASSIGN_OR_RETURN(node.otherwise, ParseBlock({"endif"}, "if"));
      expressions_.LeaveIf();
    }
    RETURN_IF_ERROR(CloseTag("endif"));
    return Statement{position, std::move(node)};
  }

  Parsed ParseFor(Position position) {
    ForNode node;
    ASSIGN_OR_RETURN(node.target, ParseTarget(false));
    if (!expressions_.SkipName("in")) return expressions_.Expected("'in'");
    ASSIGN_OR_RETURN(node.iterable, expressions_.ParseTuple(false));
    if (expressions_.SkipName("if")) {
      ASSIGN_OR_RETURN(node.condition, expressions_.ParseExpression());
    }
    RETURN_IF_ERROR(EndOfTag());
    ++loops_;
    ASSIGN_OR_RETURN(node.body, ParseBlock({"endfor", "else"}, "for"));
    --loops_;
    if (SkipTagName("else")) {
      RETURN_IF_ERROR(EndOfTag());
      ASSIGN_OR_RETURN(node.otherwise, ParseBlock({"endfor"}, "for"));
    }
    RETURN_IF_ERROR(CloseTag("endfor"));
    return Statement{position, std::move(node)};
  }

  // a   a, b   (a, b)   space.attribute (set only)
  absl::StatusOr<Target> ParseTarget(bool may_be_attribute) {
    Target all;
    all.position = expressions_.Current().position;
    bool comma = false;
    while (expressions_.At(TokenType::kName) || expressions_.AtOperator("(")) {
      if (expressions_.AtName("in")) break;
      ASSIGN_OR_RETURN(Target part, ParseTargetPart(may_be_attribute));
      all.parts.push_back(std::move(part));
      comma = expressions_.SkipOperator(",");
      if (!comma) break;
    }
    if (all.parts.empty()) return expressions_.Expected("a name to assign to");
    if (all.parts.size() > 1 || comma) return all;
    Target only = std::move(all.parts[0]);
    return only;
  }

  absl::StatusOr<Target> ParseTargetPart(bool may_be_attribute) {
    if (expressions_.SkipOperator("(")) {
      const ExpressionParser::Nesting nesting(expressions_);
      RETURN_IF_ERROR(nesting.Check());
      ASSIGN_OR_RETURN(Target inner, ParseTarget(may_be_attribute));
      RETURN_IF_ERROR(expressions_.ExpectOperator(")"));
      return inner;
    }
    const Token name = expressions_.Take();
    for (const std::string_view constant :
         {"true", "false", "none", "True", "False", "None", "loop"}) {
      if (name.text != constant || (may_be_attribute && constant == "loop")) continue;
      return expressions_.ErrorAt(name.position, fmt::format("cannot assign to '{}'", constant));
    }
    Target target;
    target.position = name.position;
    target.name = expressions_.NameNumber(name.text);
    if (may_be_attribute && expressions_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(Token attribute, expressions_.ExpectName("the name of an attribute"));
      target.attribute = std::move(attribute.text);
    }
    return target;
  }

  Parsed ParseSet(Position position) {
    ASSIGN_OR_RETURN(Target target, ParseTarget(true));
    if (expressions_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.ParseTuple(true));
      RETURN_IF_ERROR(EndOfTag());
      return Statement{position, SetNode{std::move(target), std::move(value)}};
    }
    SetBlockNode node{std::move(target), {}, {}};
    while (expressions_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(auto filter, expressions_.ParseFilterName());
      node.filters.push_back(std::move(filter));
    }
    if (!expressions_.At(TokenType::kBlockEnd)) return expressions_.Expected("'=' or '%}'");
    ASSIGN_OR_RETURN(node.body, ParseBody("endset", "set"));
    return Statement{position, std::move(node)};
  }

  Parsed ParseMacro(Position position) {
    auto macro = std::make_unique<Macro>();
    ASSIGN_OR_RETURN(Token name, expressions_.ExpectName("the name of the macro"));
    macro->name = expressions_.NameNumber(name.text);
    macro->label = std::move(name.text);
    RETURN_IF_ERROR(expressions_.ExpectOperator("("));
    while (!expressions_.AtOperator(")")) {
      if (!macro->parameters.empty()) RETURN_IF_ERROR(expressions_.ExpectOperator(","));
      if (expressions_.AtOperator(")")) break;
      RETURN_IF_ERROR(ParseParameter(*macro));
    }
    RETURN_IF_ERROR(expressions_.ExpectOperator(")"));
    ASSIGN_OR_RETURN(macro->body, ParseFunctionBody("endmacro", "macro"));
    return Statement{position, MacroNode{std::move(macro)}};
  }

  absl::Status ParseParameter(Macro& macro) {
    ASSIGN_OR_RETURN(const Token name, expressions_.ExpectName("the name of a parameter"));
    ExpressionPtr standard;
    if (expressions_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(standard, expressions_.ParseExpression());
    } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
      return expressions_.ErrorAt(name.position,
                                  "a parameter without a default follows one that has a default");
    }
    macro.parameters.emplace_back(expressions_.NameNumber(name.text), std::move(standard));
    return absl::OkStatus();
  }

  // In jinja2 the bodies of macro and generation are functions: a break does not leave them.
  absl::StatusOr<Block> ParseFunctionBody(std::string_view end, std::string_view opener) {
    const int loops = std::exchange(loops_, 0);
    ASSIGN_OR_RETURN(Block body, ParseBody(end, opener));
    loops_ = loops;
    return body;
  }

  Parsed ParseGeneration(Position position) {
    ASSIGN_OR_RETURN(Block body, ParseFunctionBody("endgeneration", "generation"));
    return Statement{position, GenerationNode{std::move(body)}};
  }

  Parsed ParseLoopControl(const Token& tag, Statement statement) {
    if (loops_ == 0) {
      return expressions_.ErrorAt(tag.position,
                                  fmt::format("{{% {} %}} stands outside of a for", tag.text));
    }
    RETURN_IF_ERROR(EndOfTag());
    return statement;
  }

  ExpressionParser expressions_;
  Program& program_;
  int loops_ = 0;  // for blocks around, up to the next macro
};

}  // namespace

absl::StatusOr<Program> ParseProgram(std::string_view source, std::string template_name) {
  if (source.size() > kMaxSourceBytes) {
    return InvalidInput("{}: the template has {} bytes, at most {} are read", template_name,
                        source.size(), kMaxSourceBytes);
  }
  Program program;
  program.template_name = std::move(template_name);
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source, program.template_name));
  RETURN_IF_ERROR(Parser(std::move(tokens), program).Run());
  return program;
}

}  // namespace orrery::rollout::jinja

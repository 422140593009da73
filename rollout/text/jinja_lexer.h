// Splits the text of a template into tokens, with the white space control that chat templates are
// written for: trim_blocks and lstrip_blocks are on, as transformers sets them (jinja2
// documentation, "Whitespace Control"), {%- -%} {%+ +%} override, comments are dropped, one line
// break at the very end is dropped, and \r\n reads as \n.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/status.h"

namespace orrery::rollout::jinja {

// Counted from 1; columns in characters.
struct Position {
  int line = 1;
  int column = 1;
};

// "chat_template.jinja:3:14".
std::string ShowPlace(std::string_view template_name, Position position);

enum class TokenType : uint8_t {
  kData,           // text outside of tags, as it is to be printed
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kText,  // a quoted string, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  Position position;
};

// How a token reads in an error: "'%}'", "the name 'foo'", "the end of the template".
std::string ShowToken(const Token& token);

// The last token is kEnd. Errors name the place and what was expected.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source,
                                            std::string_view template_name);

}  // namespace orrery::rollout::jinja

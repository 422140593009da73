// A place in a list of tokens, with the steps that the parsers of expressions and of answers share.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rewards/math_token.h"

namespace orrery::rewards {

class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Kind = Token::Kind;
  static constexpr int kMaxDepth = 48;

  bool AtEnd() const { return at_ >= tokens_.size(); }
  bool Is(std::string_view symbol, size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].Is(symbol);
  }
  bool IsCommand(std::string_view name) const { return !AtEnd() && tokens_[at_].IsCommand(name); }
  bool IsKind(Kind kind, size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].kind == kind;
  }
  bool Accept(std::string_view symbol) {
    if (!Is(symbol)) return false;
    ++at_;
    return true;
  }
  bool AcceptCommand(std::string_view name) {
    if (!IsCommand(name)) return false;
    ++at_;
    return true;
  }
  bool Fail() {
    failed_ = true;
    return false;
  }

  // Leaves the rest of a word of letters behind its first.
  std::string TakeLetter() {
    Token& token = tokens_[at_];
    std::string letter = token.text.substr(0, 1);
    if (token.text.size() == 1) {
      ++at_;
    } else {
      token.text.erase(0, 1);
      token.space_before = false;
    }
    return letter;
  }

  // Index of the token that closes the bracket at `open`; tokens_.size() where none does.
  size_t Closing(size_t open) const {
    int depth = 0;
    for (size_t i = open; i < tokens_.size(); ++i) {
      const Token& t = tokens_[i];
      if (t.Is("(") || t.Is("[") || t.Is("{") || t.Is("set{") || t.IsCommand("langle")) ++depth;
      if (t.Is(")") || t.Is("]") || t.Is("}") || t.Is("set}") || t.IsCommand("rangle")) {
        if (--depth == 0) return i;
      }
    }
    return tokens_.size();
  }

  bool HasTopLevelComma(size_t open, size_t close) const {
    int depth = 0;
    for (size_t i = open + 1; i < close; ++i) {
      const Token& t = tokens_[i];
      if (t.Is("(") || t.Is("[") || t.Is("{") || t.Is("set{")) ++depth;
      if (t.Is(")") || t.Is("]") || t.Is("}") || t.Is("set}")) --depth;
      if (depth == 0 && (t.Is(",") || t.Is(";"))) return true;
    }
    return false;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;        // of nesting, limited by kMaxDepth
  bool failed_ = false;  // for good: no parser tries another reading
};

}  // namespace orrery::rewards

// An answer in LaTeX, Unicode or plain text as a list of tokens. Marks without meaning are gone
// here: dollar signs, \left and \right, sizes, styles, thin spaces, \text{} around words. Numbers
// come out whole: thousands separators removed, decimals and repeating decimals exact.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rewards/rational.h"

namespace orrery::rewards {

struct Token {
  enum class Kind {
    kNumber,   // text as written without separators, value exact
    kWord,     // a run of letters; from_text where it stood in \text{} or the like
    kCommand,  // \name, after aliases (dfrac -> frac, leq -> le)
    kSymbol,   // one of + - * / ^ _ = < > ( ) [ ] | ! , ; : & % ' and "{}" for LaTeX groups,
               // "set{" "set}" for \{ \}, "\\" between rows, "deg", "currency"
  };
  Kind kind;
  std::string text;
  Rational value;           // kNumber
  int num_decimals = 0;     // kNumber: digits after the point
  int num_significant = 0;  // kNumber: digits from the first that is not 0
  bool repeating = false;   // kNumber: 0.\overline{3}
  bool from_text = false;   // kWord
  bool space_before = false;

  bool Is(std::string_view symbol) const { return kind == Kind::kSymbol && text == symbol; }
  bool IsCommand(std::string_view name) const { return kind == Kind::kCommand && text == name; }
  bool IsWord(std::string_view word) const { return kind == Kind::kWord && text == word; }
};

struct TokenizeOptions {
  // "1,080" outside brackets is one number (a list of two otherwise). Separators that can mean
  // nothing else, as in 1{,}080 or 1\,080, always join.
  bool join_thousands = true;
};

// nullopt: longer than 4096 bytes or 1024 tokens, a command that cannot be read, unbalanced
// \text{}.
std::optional<std::vector<Token>> Tokenize(std::string_view answer, const TokenizeOptions& options);

// The tokens in one canonical spelling: equal for answers that differ in marks without meaning
// only.
std::string CanonicalText(const std::vector<Token>& tokens);

}  // namespace orrery::rewards

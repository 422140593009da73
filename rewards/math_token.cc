#include "rewards/math_token.h"

#include <algorithm>
#include <utility>

#include "rewards/math_symbols.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr size_t kMaxBytes = 4096;
constexpr size_t kMaxTokens = 1024;
constexpr int kMaxTextDepth = 16;

class Tokenizer {
 public:
  Tokenizer(std::string_view text, const TokenizeOptions& options)
      : text_(text), options_(options) {}

  std::optional<std::vector<Token>> Run() {
    while (at_ < text_.size() && !failed_) Next();
    if (failed_ || tokens_.size() > kMaxTokens) return std::nullopt;
    return std::move(tokens_);
  }

 private:
  void Next() {
    const char c = text_[at_];
    if (IsSpace(c) || c == '~') {
      space_ = true;
      ++at_;
    } else if (IsDigit(c) || (c == '.' && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
      Number();
    } else if (c == '\\') {
      Backslash();
    } else if (IsLetter(c) || static_cast<unsigned char>(c) >= 0x80) {
      Word();
    } else if (text_.substr(at_).starts_with("**")) {
      at_ += 2;
      Push(Token::Kind::kSymbol, "^");
    } else {
      ++at_;
      Punctuation(c);
    }
    if (tokens_.size() > kMaxTokens) failed_ = true;
  }

  void Push(Token::Kind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.space_before = std::exchange(space_, false);
    token.from_text = text_depth_ > 0 && kind == Token::Kind::kWord;
    tokens_.push_back(std::move(token));
  }

  void Punctuation(char c) {
    constexpr std::string_view kOpen = "([", kClose = ")]";
    if (c == '$' || c == '"' || c == '`') return;
    if (c == '.' || c == '?') {  // a sentence's end; anywhere else it has no meaning we know
      if (Strip(text_.substr(at_)).empty() || text_depth_ > 0) return;
      failed_ = true;
    }
    if (kOpen.find(c) != std::string_view::npos) ++bracket_depth_;
    if (kClose.find(c) != std::string_view::npos) --bracket_depth_;
    Push(Token::Kind::kSymbol, std::string(1, c));
  }

  void Word() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (IsLetter(text_[at_]) || static_cast<unsigned char>(text_[at_]) >= 0x80)) {
      ++at_;
    }
    Push(Token::Kind::kWord, std::string(text_.substr(begin, at_ - begin)));
  }

  void Backslash() {
    ++at_;
    if (at_ >= text_.size()) return;
    if (!IsLetter(text_[at_])) return ControlSymbol(text_[at_++]);
    const size_t begin = at_;
    while (at_ < text_.size() && IsLetter(text_[at_])) ++at_;
    Command(text_.substr(begin, at_ - begin));
  }

  void ControlSymbol(char c) {
    switch (c) {
      case '{':
        ++bracket_depth_;
        return Push(Token::Kind::kSymbol, "set{");
      case '}':
        --bracket_depth_;
        return Push(Token::Kind::kSymbol, "set}");
      case '$':
        return Push(Token::Kind::kSymbol, "currency");
      case '%':
        return Push(Token::Kind::kSymbol, "%");
      case '|':
        return Push(Token::Kind::kSymbol, "|");
      case '\\':
        return Push(Token::Kind::kSymbol, "\\");
      case '(':
      case ')':
      case '[':
      case ']':
      case '!':
        return;
      case ' ':
      case ',':
      case ';':
      case ':':
      case '\n':
        space_ = true;
        return;
      default:
        failed_ = true;
    }
  }

  void Command(std::string_view name) {
    if (name == "left" || name == "right") {  // "\left." is no delimiter at all
      if (at_ < text_.size() && text_[at_] == '.') ++at_;
      return;
    }
    if (IsSilentCommand(name)) return;
    if (IsSpaceCommand(name)) {
      space_ = true;
      return;
    }
    if (IsTextCommand(name)) return Textual();
    const std::string alias(CommandAlias(name));
    if (alias.empty()) return Push(Token::Kind::kCommand, std::string(name));
    if (alias == "and" || alias == "or") return Push(Token::Kind::kWord, alias);
    const bool is_command = IsLetter(alias[0]) && alias != "deg" && !alias.starts_with("set");
    Push(is_command ? Token::Kind::kCommand : Token::Kind::kSymbol, alias);
  }

  // The argument of \text and its kin, read in place with every run of letters one word.
  void Textual() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    if (at_ >= text_.size() || text_[at_] != '{') return;  // \bf x, \mathrm x
    const size_t close = ClosingBrace(text_, at_);
    if (close == std::string_view::npos || text_depth_ >= kMaxTextDepth) {
      failed_ = true;
      return;
    }
    const std::string_view whole = std::exchange(text_, text_.substr(0, close));
    ++at_;
    ++text_depth_;
    while (at_ < text_.size() && !failed_) Next();
    --text_depth_;
    text_ = whole;
    at_ = close + 1;
  }

  // Length of a thousands separator at `at`, 0 for none. A comma alone counts where lists are not
  // meant.
  size_t Separator(size_t at) const {
    const std::string_view rest = text_.substr(at);
    for (const std::string_view sure : {"{,}", ",\\!", "\\,", "\\!", "{\\,}", "\\ ", "\\;"}) {
      if (rest.starts_with(sure)) {
        size_t size = sure.size();
        while (sure != "\\ " && size < rest.size() && rest[size] == ' ') ++size;
        return size;
      }
    }
    if (rest.starts_with(",")) {
      const bool leading_zero = rest.size() > 1 && rest[1] == '0';
      return options_.join_thousands && (bracket_depth_ <= 0 || leading_zero) ? 1 : 0;
    }
    return rest.starts_with(" ") ? 1 : 0;
  }

  bool ThreeDigits(size_t at) const {
    if (at + 3 > text_.size()) return false;
    const bool more = at + 3 < text_.size() && IsDigit(text_[at + 3]);
    return IsDigit(text_[at]) && IsDigit(text_[at + 1]) && IsDigit(text_[at + 2]) && !more;
  }

  std::string DigitRun() {
    std::string digits;
    while (at_ < text_.size() && IsDigit(text_[at_])) digits += text_[at_++];
    return digits;
  }

  // Digits with their thousands groups: 1,080 and 11,\! 111.
  std::string WholePart() {
    std::string digits = DigitRun();
    if (digits.empty() || digits.size() > 3 || digits[0] == '0') return digits;
    while (true) {
      const size_t separator = Separator(at_);
      if (separator == 0 || !ThreeDigits(at_ + separator)) return digits;
      const bool mixed_number = text_[at_] == ' ' && text_.substr(at_ + 4).starts_with("/");
      if (mixed_number) return digits;
      at_ += separator;
      digits += DigitRun();
    }
  }

  void Number() {
    std::string digits = WholePart();
    std::string decimals;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && IsDigit(text_[at_ + 1])) {
      ++at_;
      decimals = DigitRun();
    } else if (text_.substr(at_).starts_with(".\\overline{") || IsTrailingPoint()) {
      ++at_;
    }
    const std::string exponent = Exponent();
    const std::optional<Rational> value =
        Rational::FromDecimal((digits.empty() ? "0" : digits) + "." + decimals + exponent);
    if (!value) {
      failed_ = true;
      return;
    }
    std::string shown = digits.empty() ? "0" : digits;
    if (!decimals.empty()) shown += "." + decimals;
    Push(Token::Kind::kNumber, shown + exponent);
    Token& token = tokens_.back();
    token.value = *value;
    token.num_decimals = static_cast<int>(decimals.size());
    const std::string all = digits + decimals;
    const size_t first = all.find_first_not_of('0');
    token.num_significant = first == std::string::npos ? 0 : static_cast<int>(all.size() - first);
    if (text_.substr(at_).starts_with("\\overline{") && exponent.empty()) Repeating(&token);
  }

  // "18." at the end of the answer, or before a sign that closes it.
  bool IsTrailingPoint() const {
    if (at_ >= text_.size() || text_[at_] != '.') return false;
    const size_t next = text_.find_first_not_of(" \t\n$", at_ + 1);
    return next == std::string_view::npos;
  }

  std::string Exponent() {
    size_t i = at_;
    if (i >= text_.size() || (text_[i] != 'e' && text_[i] != 'E')) return "";
    ++i;
    if (i < text_.size() && (text_[i] == '+' || text_[i] == '-')) ++i;
    const size_t first_digit = i;
    while (i < text_.size() && IsDigit(text_[i])) ++i;
    if (i == first_digit || (i < text_.size() && IsLetter(text_[i]))) return "";
    std::string exponent(text_.substr(at_, i - at_));
    at_ = i;
    return exponent;
  }

  // 0.1\overline{6} = 1/10 + 6/90.
  void Repeating(Token* token) {
    const size_t open = at_ + std::string_view("\\overline").size();
    const size_t close = text_.find('}', open);
    if (close == std::string_view::npos) return;
    const std::string_view period = text_.substr(open + 1, close - open - 1);
    if (period.empty() || period.size() > 64 ||
        !std::all_of(period.begin(), period.end(), IsDigit)) {
      return;
    }
    const Rational ten(10);
    const std::optional<Rational> cycle = Power(ten, static_cast<int64_t>(period.size()));
    const std::optional<Rational> scale = Power(ten, token->num_decimals);
    const std::optional<Rational> below = Multiply(*Subtract(*cycle, 1), *scale);
    const std::optional<Rational> tail =
        below ? Divide(*Rational::FromDecimal(period), *below) : std::nullopt;
    const std::optional<Rational> sum = tail ? Add(token->value, *tail) : std::nullopt;
    if (!sum) return;
    token->value = *sum;
    token->repeating = true;
    token->text += token->num_decimals == 0 ? ".~" : "~";
    token->text += period;
    at_ = close + 1;
  }

  std::string_view text_;
  const TokenizeOptions& options_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int bracket_depth_ = 0;
  int text_depth_ = 0;
  bool space_ = false;
  bool failed_ = false;
};

}  // namespace

std::optional<std::vector<Token>> Tokenize(std::string_view answer,
                                           const TokenizeOptions& options) {
  if (answer.size() > kMaxBytes) return std::nullopt;
  answer = Strip(answer);
  while (answer.starts_with('*')) answer.remove_prefix(1);  // **bold** in Markdown
  while (answer.ends_with('*')) answer.remove_suffix(1);
  const std::string text = ReplaceUnicode(ValidUtf8(Strip(answer)));
  return Tokenizer(text, options).Run();
}

std::string CanonicalText(const std::vector<Token>& tokens) {
  std::string out;
  for (const Token& token : tokens) {
    if (token.kind == Token::Kind::kCommand) out += '\\';
    out += token.text;
    out += ' ';
  }
  return out;
}

}  // namespace orrery::rewards

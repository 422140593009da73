#include "rollout/text/jinja_lexer.h"

#include <algorithm>
#include <utility>

#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

std::string ShowPlace(std::string_view template_name, Position position) {
  return fmt::format("{}:{}:{}", template_name, position.line, position.column);
}

std::string ShowToken(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "text outside of tags";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "'}}'";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kName:
      return fmt::format("the name '{}'", token.text);
    case TokenType::kText:
      return "a quoted text";
    case TokenType::kInteger:
    case TokenType::kFloat:
      return fmt::format("the number {}", token.text);
    case TokenType::kOperator:
      return fmt::format("'{}'", token.text);
    case TokenType::kEnd:
      return "the end of the template";
  }
  return "a token";
}

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Line breaks as \n, and one at the very end dropped (jinja2 keeps it only on request).
std::string Normalize(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name)
      : source_(Normalize(source)), text_(source_), name_(name) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < text_.size()) RETURN_IF_ERROR(Outside());
    Emit(TokenType::kEnd, "", text_.size());
    return std::move(tokens_);
  }

 private:
  // Text up to the next opening tag, and that tag.
  absl::Status Outside() {
    const size_t begin = FindOpening();
    if (begin == text_.size()) {
      EmitData(text_.substr(at_));
      at_ = begin;
      return absl::OkStatus();
    }
    const char kind = text_[begin + 1];
    size_t inside = begin + 2;
    char sign = inside < text_.size() ? text_[inside] : '\0';
    if (sign == '-' || sign == '+') {
      ++inside;
    } else {
      sign = '\0';
    }
    EmitData(StripBeforeTag(text_.substr(at_, begin - at_), sign, kind));
    at_ = inside;
    if (kind == '#') return Comment(begin);
    return Tag(begin, kind == '{');
  }

  size_t FindOpening() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return text_.size();
  }

  // `-` drops all white space before the tag; without a sign a block or comment that stands alone
  // at the beginning of its line loses its indentation (lstrip_blocks).
  std::string_view StripBeforeTag(std::string_view data, char sign, char kind) const {
    if (sign == '-') return Strip(data, Side::kRight);
    if (sign == '+' || kind == '{') return data;
    const size_t line_start = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line_start == 0 && !line_starting_) return data;
    const bool blank = Strip(data.substr(line_start), Side::kLeft).empty();
    return blank ? data.substr(0, line_start) : data;
  }

  // After a closing tag: `-` drops the white space that follows; a block or comment without `+`
  // drops one line break (trim_blocks).
  void FinishTag(size_t end, char sign, bool trims_line_break) {
    at_ = end;
    if (sign == '-') {
      at_ = text_.size() - Strip(text_.substr(end), Side::kLeft).size();
    } else if (trims_line_break && sign != '+' && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = text_[at_ - 1] == '\n';
  }

  absl::Status Comment(size_t begin) {
    const size_t end = FindText(text_, "#}", at_);
    if (end == std::string_view::npos)
      return Error(begin, "the comment is not closed: expected '#}'");
    const char before = end > at_ ? text_[end - 1] : '\0';
    FinishTag(end + 2, before == '-' || before == '+' ? before : '\0', true);
    return absl::OkStatus();
  }

  absl::Status Tag(size_t begin, bool variable) {
    Emit(variable ? TokenType::kVariableBegin : TokenType::kBlockBegin, "", begin);
    brackets_.clear();
    while (true) {
      SkipSpace();
      if (at_ >= text_.size()) {
        return Error(begin,
                     fmt::format("the tag is not closed: expected '{}'", variable ? "}}" : "%}"));
      }
      if (brackets_.empty() && Closes(variable)) return absl::OkStatus();
      RETURN_IF_ERROR(InsideToken());
    }
  }

  void SkipSpace() {
    while (at_ < text_.size()) {
      const CodePoint c = DecodeAt(text_, at_);
      if (!IsSpace(c.value)) return;
      at_ += c.size;
    }
  }

  bool Closes(bool variable) {
    const std::string_view closing = variable ? "}}" : "%}";
    const char sign = text_[at_];
    const bool signed_end =
        (sign == '-' || (sign == '+' && !variable)) && text_.substr(at_ + 1, 2) == closing;
    if (!signed_end && text_.substr(at_, 2) != closing) return false;
    Emit(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "", at_);
    FinishTag(at_ + (signed_end ? 3 : 2), signed_end ? sign : '\0', !variable);
    return true;
  }

  absl::Status InsideToken() {
    const char c = text_[at_];
    if (IsNameStart(c)) return Name();
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return Quoted();
    return Operator();
  }

  absl::Status Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (IsNameStart(text_[at_]) || IsDigit(text_[at_]))) ++at_;
    Emit(TokenType::kName, std::string(text_.substr(begin, at_ - begin)), begin);
    return absl::OkStatus();
  }

  void TakeDigits(std::string& digits) {
    while (at_ < text_.size() && (IsDigit(text_[at_]) || text_[at_] == '_')) {
      if (text_[at_] != '_') digits += text_[at_];
      ++at_;
    }
  }

  absl::Status Number() {
    const size_t begin = at_;
    std::string digits;
    TakeDigits(digits);
    bool floating = false;
    const bool index = tokens_.back().type == TokenType::kOperator && tokens_.back().text == ".";
    if (!index && at_ + 1 < text_.size() && text_[at_] == '.' && IsDigit(text_[at_ + 1])) {
      floating = true;
      digits += text_[at_++];
      TakeDigits(digits);
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      const size_t sign =
          at_ + 1 < text_.size() && (text_[at_ + 1] == '+' || text_[at_ + 1] == '-');
      if (at_ + 1 + sign < text_.size() && IsDigit(text_[at_ + 1 + sign])) {
        floating = true;
        digits += text_.substr(at_, 1 + sign);
        at_ += 1 + sign;
        TakeDigits(digits);
      }
    }
    if (at_ < text_.size() && IsNameStart(text_[at_])) {
      return Error(begin, "expected a decimal number");
    }
    Emit(floating ? TokenType::kFloat : TokenType::kInteger, std::move(digits), begin);
    return absl::OkStatus();
  }

  absl::Status Quoted() {
    const size_t begin = at_;
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] != '\\') {
        value += text_[at_++];
      } else {
        RETURN_IF_ERROR(Escape(value));
      }
    }
    if (at_ >= text_.size()) {
      return Error(begin, fmt::format("the text is not closed: expected {}", quote));
    }
    ++at_;
    Emit(TokenType::kText, std::move(value), begin);
    return absl::OkStatus();
  }

  // The escapes of a Python string; an unknown one keeps its backslash.
  absl::Status Escape(std::string& value) {
    static constexpr std::string_view kLetters = "ntr\\'\"abfv";
    static constexpr std::string_view kMeanings = "\n\t\r\\'\"\a\b\f\v";
    if (at_ + 1 >= text_.size()) return Error(at_, "the text ends in a backslash");
    const char letter = text_[at_ + 1];
    if (const size_t i = kLetters.find(letter); i != std::string_view::npos) {
      value += kMeanings[i];
      at_ += 2;
      return absl::OkStatus();
    }
    if (letter == 'x' || letter == 'u' || letter == 'U') return HexEscape(value, letter);
    if (letter >= '0' && letter <= '7') return OctalEscape(value);
    if (letter != '\n') value += {'\\', letter};
    at_ += 2;
    return absl::OkStatus();
  }

  absl::Status HexEscape(std::string& value, char letter) {
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    uint32_t code_point = 0;
    for (size_t i = 0; i < digits; ++i) {
      const size_t at = at_ + 2 + i;
      const int digit = at < text_.size() ? HexDigit(text_[at]) : -1;
      if (digit < 0) return Error(at_, fmt::format("expected {} hexadecimal digits", digits));
      code_point = code_point * 16 + static_cast<uint32_t>(digit);
    }
    if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point <= 0xdfff)) {
      return Error(at_, "expected a Unicode code point that is not a surrogate");
    }
    AppendUtf8(code_point, value);
    at_ += 2 + digits;
    return absl::OkStatus();
  }

  absl::Status OctalEscape(std::string& value) {
    uint32_t code_point = 0;
    ++at_;
    for (int i = 0; i < 3 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i) {
      code_point = code_point * 8 + static_cast<uint32_t>(text_[at_++] - '0');
    }
    AppendUtf8(code_point, value);
    return absl::OkStatus();
  }

  absl::Status Operator() {
    static constexpr std::string_view kDouble[] = {"==", "!=", "<=", ">=", "//", "**"};
    static constexpr std::string_view kSingle = "+-*/%~()[]{}<>=.:|,;";
    const std::string_view two = text_.substr(at_, 2);
    const bool is_double =
        std::find(std::begin(kDouble), std::end(kDouble), two) != std::end(kDouble);
    const std::string_view found = two.substr(0, is_double ? 2 : 1);
    if (!is_double && kSingle.find(found) == std::string_view::npos) {
      const std::string_view shown = text_.substr(at_, DecodeAt(text_, at_).size);
      return Error(at_, fmt::format("unexpected character '{}'", shown));
    }
    RETURN_IF_ERROR(Balance(found[0]));
    Emit(TokenType::kOperator, std::string(found), at_);
    at_ += found.size();
    return absl::OkStatus();
  }

  // Inside brackets `}}` closes two mappings, not the tag.
  absl::Status Balance(char c) {
    static constexpr std::string_view kOpen = "([{";
    static constexpr std::string_view kClose = ")]}";
    if (const size_t i = kOpen.find(c); i != std::string_view::npos) {
      brackets_ += kClose[i];
    } else if (kClose.find(c) != std::string_view::npos) {
      if (brackets_.empty()) return Error(at_, fmt::format("'{}' closes nothing", c));
      if (brackets_.back() != c) {
        return Error(at_, fmt::format("expected '{}', found '{}'", brackets_.back(), c));
      }
      brackets_.pop_back();
    }
    return absl::OkStatus();
  }

  void EmitData(std::string_view data) {
    if (!data.empty()) Emit(TokenType::kData, std::string(data), at_);
  }

  void Emit(TokenType type, std::string text, size_t offset) {
    tokens_.push_back({type, std::move(text), PositionAt(offset)});
  }

  // Offsets are asked for in rising order, but for errors, which may go back.
  Position PositionAt(size_t offset) {
    if (offset < known_offset_) {
      known_ = {};
      known_offset_ = 0;
    }
    while (known_offset_ < offset) {
      const size_t size = DecodeAt(text_, known_offset_).size;
      if (text_[known_offset_] == '\n') {
        known_ = {known_.line + 1, 1};
      } else {
        ++known_.column;
      }
      known_offset_ += size;
    }
    return known_;
  }

  absl::Status Error(size_t offset, std::string_view problem) {
    return InvalidInput("{}: {}", ShowPlace(name_, PositionAt(offset)), problem);
  }

  const std::string source_;
  const std::string_view text_;
  const std::string_view name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::string brackets_;  // the closing ones that are waited for
  Position known_;
  size_t known_offset_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source,
                                            std::string_view template_name) {
  return Lexer(source, template_name).Run();
}

}  // namespace orrery::rollout::jinja

#include "rollout/text/regex_syntax.h"

#include <cstdint>

#include "orchestrator/base/status.h"
#include "rollout/text/unicode_versions.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

// Unicode's White_Space property and its complement, as the inside of a class.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

constexpr std::string_view kCategories[] = {
    "L",  "M",  "N",  "P",  "S",  "Z",  "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
    "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc"};

bool IsKnownCategory(std::string_view name) {
  for (const std::string_view known : kCategories) {
    if (known == name) return true;
  }
  return false;
}

// The inside of a class that matches a category in Unicode 16, whatever version PCRE2 knows. The
// ASCII letters in front are there twice for speed: PCRE2 tests them by a bitmap.
std::string CategoryRanges(std::string_view category) {
  std::string out = category == "L" ? "A-Za-z" : category == "N" ? "0-9" : "";
  out += fmt::format("\\p{{{}}}", category);
  for (const CategoryRange& range : CategoriesSinceUnicode14()) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(range.first));
    if (range.last != range.first) {
      out += fmt::format("-\\x{{{:x}}}", static_cast<uint32_t>(range.last));
    }
  }
  return out;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!AtEnd()) RETURN_IF_ERROR(Next());
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return pos_ >= pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0';
  }
  bool Accept(std::string_view text) {
    if (!pattern_.substr(pos_).starts_with(text)) return false;
    pos_ += text.size();
    return true;
  }
  absl::Status Unsupported(std::string_view what) const {
    return InvalidInput("{} at byte {} is not supported", what, pos_);
  }

  absl::Status Next() {
    switch (Peek()) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return Group();
      case '{':
        return Interval();
      default:
        out_.push_back(pattern_[pos_++]);
        return absl::OkStatus();
    }
  }

  // Escapes outside of classes.
  absl::Status Escape() {
    if (Peek(1) == 'A' || Peek(1) == 'z' || Peek(1) == 'Z') {
      out_ += pattern_.substr(pos_, 2);
      pos_ += 2;
      return absl::OkStatus();
    }
    std::string set;
    bool negated = false, is_set = false;
    RETURN_IF_ERROR(ReadEscape(&set, &negated, &is_set));
    out_ += is_set ? fmt::format("[{}{}]", negated ? "^" : "", set) : set;
    return absl::OkStatus();
  }

  // Reads an escape into the inside of a class, negated where the escape is (\S, \P{L}); is_set is
  // false for a single character.
  absl::Status ReadEscape(std::string* set, bool* negated, bool* is_set) {
    const char kind = Peek(1);
    *is_set = true;
    *negated = kind == 'S' || kind == 'D' || kind == 'P';
    switch (kind) {
      case 's':
      case 'S':
        pos_ += 2;
        *set = kSpaces;
        return absl::OkStatus();
      case 'd':
      case 'D':
        pos_ += 2;
        *set = CategoryRanges("Nd");
        return absl::OkStatus();
      case 'p':
      case 'P':
        return ReadCategory(set, negated);
      default:
        *is_set = false;
        return ReadCharacterEscape(set);
    }
  }

  absl::Status ReadCategory(std::string* set, bool* negated) {
    const size_t close = pattern_.find('}', pos_);
    if (Peek(2) != '{' || close == std::string_view::npos) {
      return Unsupported("\\p without {}");
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    if (name.starts_with('^')) {
      *negated = !*negated;
      name.remove_prefix(1);
    }
    if (!IsKnownCategory(name)) {
      return Unsupported(fmt::format("the property '{}'", name));
    }
    pos_ = close + 1;
    *set = CategoryRanges(name);
    return absl::OkStatus();
  }

  absl::Status ReadCharacterEscape(std::string* set) {
    const char kind = Peek(1);
    switch (kind) {
      case 'n':
        return TakeCharacter(2, '\n', set);
      case 'r':
        return TakeCharacter(2, '\r', set);
      case 't':
        return TakeCharacter(2, '\t', set);
      case 'f':
        return TakeCharacter(2, '\f', set);
      case 'v':
        return TakeCharacter(2, '\v', set);
      case 'a':
        return TakeCharacter(2, '\a', set);
      case 'e':
        return TakeCharacter(2, 0x1B, set);
      case 'x':
        return Peek(2) == '{' ? ReadHex(3, 8, '}', set) : ReadHex(2, 2, '\0', set);
      case 'u':
        return ReadHex(2, 4, '\0', set);
      default:
        break;
    }
    const auto byte = static_cast<uint8_t>(kind);
    const bool alphanumeric = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                              (byte >= 'a' && byte <= 'z');
    if (byte <= 0x20 || byte >= 0x7F || alphanumeric) {
      return Unsupported(fmt::format("the escape '{}'", pattern_.substr(pos_, 2)));
    }
    return TakeCharacter(2, byte, set);
  }

  absl::Status TakeCharacter(int length, uint32_t code_point, std::string* set) {
    pos_ += length;
    *set = fmt::format("\\x{{{:x}}}", code_point);
    return absl::OkStatus();
  }

  // Hexadecimal digits `skip` bytes on, at most `most` of them, up to `close` if there is one.
  absl::Status ReadHex(int skip, int most, char close, std::string* set) {
    uint32_t value = 0;
    int digits = 0;
    for (; digits < most; ++digits) {
      const char c = Peek(skip + digits);
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + digit;
    }
    const bool closed = close == '\0' || Peek(skip + digits) == close;
    const bool raw_byte = most == 2 && value >= 0x80;  // Oniguruma: a byte, not a code point
    const bool surrogate = value >= 0xD800 && value < 0xE000;
    if (digits == 0 || !closed || raw_byte || surrogate || value > 0x10FFFF) {
      return Unsupported("this hexadecimal escape");
    }
    return TakeCharacter(skip + digits + (close == '\0' ? 0 : 1), value, set);
  }

  absl::Status Group() {
    if (Peek(1) == '*') return Unsupported("(*");
    if (Peek(1) != '?') {
      out_.push_back(pattern_[pos_++]);
      return absl::OkStatus();
    }
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!Accept(open)) continue;
      out_ += open;
      return absl::OkStatus();
    }
    // In Ruby a bare (?i) opens a group that ends with the alternative's; at the very beginning
    // that is the same as everywhere.
    if (pos_ == 0 && Accept("(?i)")) {
      out_ += "(?i)";
      return absl::OkStatus();
    }
    return Unsupported(fmt::format("the group '{}'", pattern_.substr(pos_, 4)));
  }

  absl::Status Interval() {
    const size_t close = pattern_.find('}', pos_);
    const size_t inside_end = pattern_.find_first_not_of("0123456789,", pos_ + 1);
    if (close == std::string_view::npos || inside_end != close || close == pos_ + 1) {
      return Unsupported("a literal {");
    }
    std::string inside(pattern_.substr(pos_ + 1, close - pos_ - 1));
    if (inside.starts_with(',')) inside = "0" + inside;
    pos_ = close + 1;
    if (Peek() == '+') return Unsupported("+ after {n,m}");
    if (Peek() == '?' && inside.find(',') == std::string::npos) return Unsupported("? after {n}");
    out_ += "{" + inside + "}";
    return absl::OkStatus();
  }

  absl::Status Class() {
    out_.push_back(pattern_[pos_++]);
    if (Accept("^")) out_.push_back('^');
    if (Peek() == ']') return Unsupported("] at the beginning of a class");
    bool after_set = true;  // a '-' here is no range: at the beginning or behind \s and the like
    while (Peek() != ']') {
      if (AtEnd()) return InvalidInput("a class [ without its ]");
      RETURN_IF_ERROR(ClassItem(&after_set));
    }
    out_.push_back(pattern_[pos_++]);
    return absl::OkStatus();
  }

  absl::Status ClassItem(bool* after_set) {
    if (Peek() == '[') return Unsupported("[ inside a class");
    if (Peek() == '&' && Peek(1) == '&') return Unsupported("&& inside a class");
    if (Peek() == '-') {
      const bool literal =
          *after_set || Peek(1) == ']' || (Peek(1) == '\\' && IsSetEscape(Peek(2)));
      out_ += literal ? "\\-" : "-";
      ++pos_;
      return absl::OkStatus();
    }
    if (Peek() != '\\') {
      *after_set = false;
      // One whole character: its further bytes are no syntax.
      const Utf8Char c = ReadUtf8(pattern_.substr(pos_));
      out_ += pattern_.substr(pos_, c.length);
      pos_ += c.length;
      return absl::OkStatus();
    }
    if (Peek(1) == 'S') {
      pos_ += 2;
      out_ += kNoSpaces;
      *after_set = true;
      return absl::OkStatus();
    }
    std::string set;
    bool negated = false;
    RETURN_IF_ERROR(ReadEscape(&set, &negated, after_set));
    if (negated) return Unsupported("\\P or \\D inside a class");
    out_ += set;
    return absl::OkStatus();
  }

  static bool IsSetEscape(char kind) {
    return std::string_view("sSdDpP").find(kind) != std::string_view::npos;
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> OnigurumaToPcre2(std::string_view pattern) {
  if (!IsValidUtf8(pattern)) return InvalidInput("the pattern is not UTF-8");
  return Translator(pattern).Run();
}

}  // namespace orrery::rollout

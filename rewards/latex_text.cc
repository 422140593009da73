#include "rewards/latex_text.h"

#include <array>
#include <utility>

#include "orchestrator/base/utf8.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

using Entry = std::pair<std::string_view, std::string_view>;

constexpr auto kSymbols = std::to_array<Entry>({
    {"alpha", "α"},       {"beta", "β"},        {"gamma", "γ"},    {"delta", "δ"},
    {"epsilon", "ϵ"},     {"theta", "θ"},       {"lambda", "λ"},   {"mu", "μ"},
    {"pi", "π"},          {"rho", "ρ"},         {"sigma", "σ"},    {"tau", "τ"},
    {"phi", "ϕ"},         {"omega", "ω"},       {"cdot", "·"},     {"times", "×"},
    {"div", "÷"},         {"pm", "±"},          {"mp", "∓"},       {"infty", "∞"},
    {"cup", "∪"},         {"cap", "∩"},         {"in", "∈"},       {"le", "≤"},
    {"leq", "≤"},         {"ge", "≥"},          {"geq", "≥"},      {"neq", "≠"},
    {"approx", "≈"},      {"circ", "∘"},        {"cdots", "⋯"},    {"ldots", "…"},
    {"dots", "…"},        {"angle", "∠"},       {"emptyset", "∅"}, {"lfloor", "⌊"},
    {"rfloor", "⌋"},      {"lceil", "⌈"},       {"rceil", "⌉"},    {"langle", "⟨"},
    {"rangle", "⟩"},      {"ast", "∗"},         {"prime", "'"},    {"to", "→"},
    {"rightarrow", "→"},  {"sin", "sin"},       {"cos", "cos"},    {"tan", "tan"},
    {"log", "log"},       {"ln", "ln"},         {"exp", "exp"},    {"arcsin", "arcsin"},
    {"arccos", "arccos"}, {"arctan", "arctan"}, {"max", "max"},    {"min", "min"},
    {"quad", "  "},       {"qquad", "    "},    {"triangle", "△"}, {"varnothing", "∅"},
});

// Letters in these styles become the letters of a Unicode block that begins at the given code point
// (the few that Unicode has elsewhere do not matter: they stay different from plain ones).
constexpr auto kAlphabets = std::to_array<std::pair<std::string_view, uint32_t>>({
    {"mathbf", 0x1d400},
    {"mathit", 0x1d434},
    {"mathsf", 0x1d5a0},
    {"mathbb", 0x1d538},
    {"mathtt", 0x1d670},
    {"mathcal", 0x1d49c},
    {"mathscr", 0x1d49c},
    {"mathfrak", 0x1d504},
});

std::string Styled(std::string_view text, uint32_t first) {
  std::string out;
  for (const char c : text) {
    if (!IsLetter(c)) {
      out += c;
      continue;
    }
    const uint32_t code = first + (c >= 'a' ? 26 + (c - 'a') : c - 'A');
    for (const int shift : {18, 12, 6, 0}) {  // four bytes of UTF-8
      out += static_cast<char>((shift == 18 ? 0xf0 : 0x80) | ((code >> shift) & 0x3f));
    }
  }
  return out;
}

// \, and its kin; \! is a negative space and vanishes.
std::string_view ControlSymbol(char c) {
  switch (c) {
    case ' ':
    case ',':
    case ';':
    case ':':
    case '\n':
      return " ";
    case '\\':
      return "\n";
    case '{':
      return "{";
    case '}':
      return "}";
    case '$':
      return "$";
    case '%':
      return "%";
    case '#':
      return "#";
    case '_':
      return "_";
    case '&':
      return "&";
    default:
      return "";
  }
}

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {}

  std::optional<std::string> Run() {
    std::string out;
    while (!failed_ && at_ < text_.size()) {
      if (text_[at_] == '}') ++at_;  // a stray one vanishes
      out += Group(0, "");
    }
    return failed_ ? std::nullopt : std::optional(out);
  }

 private:
  static constexpr int kMaxDepth = 64;

  // Everything up to the closing brace (consumed) or the end; up to \end{...} inside an
  // environment.
  std::string Group(int depth, std::string_view environment) {
    std::string out;
    if (depth > kMaxDepth) failed_ = true;
    while (!failed_ && at_ < text_.size()) {
      if (text_[at_] == '}') {
        if (depth > 0 && environment.empty()) ++at_;
        return out;
      }
      if (!environment.empty() && text_.substr(at_).starts_with("\\end")) return out;
      out += Node(depth);
    }
    return out;
  }

  std::string Node(int depth) {
    const char c = text_[at_];
    if (c == '{') {
      ++at_;
      return Group(depth + 1, "");
    }
    if (c == '\\') return Command(depth);
    if (c == '%') {  // a comment, to the end of the line
      const size_t end = text_.find('\n', at_);
      at_ = end == std::string_view::npos ? text_.size() : end;
      return "";
    }
    const size_t size = std::max<size_t>(1, Utf8CharacterSize(text_, at_));
    const std::string_view character = text_.substr(at_, size);
    at_ += size;
    if (c == '$') return "";
    if (c == '&') return "   ";
    if (c == '~') return "\xc2\xa0";
    return std::string(character);
  }

  std::string Command(int depth) {
    ++at_;
    if (at_ >= text_.size()) return "";
    if (!IsLetter(text_[at_])) return std::string(ControlSymbol(text_[at_++]));
    const size_t begin = at_;
    while (at_ < text_.size() && IsLetter(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    SkipSpaces();
    return Expand(name, depth);
  }

  std::string Expand(std::string_view name, int depth) {
    if (name == "frac" || name == "nicefrac") {
      const std::string numerator = Argument(depth);
      return numerator + "/" + Argument(depth);
    }
    if (name == "sqrt") return Root(depth);
    if (name == "begin") return Environment(depth);
    if (name == "mbox") {
      Argument(depth);
      return "";
    }
    if (name == "color" || name == "textcolor") Argument(depth);
    for (const auto& [style, first] : kAlphabets) {
      if (style == name) return Styled(Argument(depth), first);
    }
    for (const auto& [symbol, text] : kSymbols) {
      if (symbol == name) return std::string(text);
    }
    return "";  // style commands: their group follows as ordinary text
  }

  std::string Root(int depth) {
    if (at_ < text_.size() && text_[at_] == '[') {
      const size_t close = text_.find(']', at_);
      at_ = close == std::string_view::npos ? text_.size() : close + 1;
    }
    SkipSpaces();
    if (at_ >= text_.size()) failed_ = true;
    return "√(" + Argument(depth) + ")";
  }

  std::string Environment(int depth) {
    const std::string name = Argument(depth);
    if (name == "array") Argument(depth);
    std::string body = Group(depth + 1, name);
    if (text_.substr(at_).starts_with("\\end")) {
      at_ += 4;
      Argument(depth);
    }
    if (!name.ends_with("matrix") && name != "array") return body;
    return "[ " + ReplaceEvery(ReplaceEvery(body, "   ", " "), "\n", "; ") + " ]";
  }

  std::string Argument(int depth) {
    SkipSpaces();
    if (at_ >= text_.size() || text_[at_] == '}') return "";
    return Node(depth + 1);
  }

  void SkipSpaces() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace

std::optional<std::string> LatexToText(std::string_view latex) { return Converter(latex).Run(); }

}  // namespace orrery::rewards

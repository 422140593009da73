#include "rewards/math_parity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/base/status.h"
#include "rewards/factories.h"
#include "rewards/latex_text.h"
#include "rewards/math_answer.h"
#include "rewards/mathd.h"
#include "rewards/python_number.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr size_t kMaxAnswerBytes = 4096;

// The content of the last \boxed{}. Unlike answer_text.h: inner boxes count, "\boxed {" does not.
std::optional<std::string_view> LastBox(std::string_view text) {
  constexpr std::string_view kBoxed = "\\boxed";
  const size_t at = text.rfind(kBoxed);
  if (at == std::string_view::npos) return std::nullopt;
  const size_t open = at + kBoxed.size();
  if (open >= text.size() || text[open] != '{') return std::nullopt;
  const size_t close = ClosingBrace(text, open);
  if (close == std::string_view::npos) return std::nullopt;
  return text.substr(open + 1, close - open - 1);
}

// --- the normalisation made for sympy
// --------------------------------------------------------------

constexpr auto kUnits = std::to_array<std::string_view>({
    "degree",
    "cm",
    "centimeter",
    "meter",
    "mile",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "foot",
    "feet",
    "inch",
    "yard",
});

size_t SkipRun(std::string_view text, size_t at, bool (*belongs)(char)) {
  while (at < text.size() && belongs(text[at])) ++at;
  return at;
}

bool IsBlank(char c) { return c == ' '; }

// Every "unit", "units", "unites", each with the spaces and the plain exponent behind it.
std::string DropUnit(std::string_view text, std::string_view unit) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(unit, begin)) != std::string_view::npos;) {
    out += text.substr(begin, at - begin);
    at += unit.size();
    if (text.substr(at).starts_with("es")) at += 2;
    if (text.substr(at).starts_with("s")) at += 1;
    at = SkipRun(text, at, IsBlank);
    if (at + 1 < text.size() && text[at] == '^' && IsDigit(text[at + 1])) {
      at = SkipRun(text, at + 1, IsDigit);
    }
    begin = at;
  }
  return out.append(text.substr(begin));
}

// "^\circ" with any spaces between.
std::string DropDegreeSigns(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t next = text[i] == '^' ? SkipRun(text, i + 1, IsBlank) : i;
    if (text[i] == '^' && text.substr(next).starts_with("\\circ")) {
      i = next + 5;
    } else {
      out += text[i++];
    }
  }
  return out;
}

// Removes `first` and the blanks behind it, putting `kept` there.
std::string DropWithBlanks(std::string_view text, std::string_view first, std::string_view kept) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(first, begin)) != std::string_view::npos;) {
    out.append(text.substr(begin, at - begin)).append(kept);
    begin = SkipRun(text, at + first.size(), IsBlank);
  }
  return out.append(text.substr(begin));
}

// "7 3/4" -> "7+3/4": a digit, blanks, a digit.
std::string JoinMixedNumbers(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t next = SkipRun(text, i + 1, IsBlank);
    if (IsDigit(text[i]) && next > i + 1 && next < text.size() && IsDigit(text[next])) {
      out.append({text[i], '+', text[next]});
      i = next + 1;
    } else {
      out += text[i++];
    }
  }
  return out;
}

// Commas before exactly three digits, again until nothing changes.
std::string DropThousandsCommas(std::string text) {
  while (true) {
    std::string next;
    for (size_t i = 0; i < text.size();) {
      const bool comma = i + 4 < text.size() && IsDigit(text[i]) && text[i + 1] == ',' &&
                         IsDigit(text[i + 2]) && IsDigit(text[i + 3]) && IsDigit(text[i + 4]) &&
                         !(i + 5 < text.size() && IsDigit(text[i + 5]));
      if (!comma) {
        next += text[i++];
        continue;
      }
      next.append({text[i], text[i + 2], text[i + 3], text[i + 4]});
      if (i + 5 < text.size()) next += text[i + 5];  // what ends the group is read with it
      i += 6;
    }
    if (next == text) return text;
    text = std::move(next);
  }
}

struct IntegerCheck {
  bool is_integer = false;
  bool raises = false;  // an infinity: OverflowError, which miles does not catch
};

IntegerCheck CheckInteger(const std::string& text) {
  const std::optional<double> value = PythonFloat(DropThousandsCommas(text));
  if (!value) return {};
  return {IsNearInteger(*value), std::isinf(*value)};
}

class Normalizer {
 public:
  explicit Normalizer(MathVariant variant) : variant_(variant) {}

  // nullopt: the original raises.
  std::optional<std::string> Normalize(std::string_view answer) const {
    std::string text = DropWords(InsideText(answer));
    if (const std::optional<double> value = PythonFloat(text); value && IsNearInteger(*value)) {
      text = PythonInt(std::round(*value));
    }
    if (text.find('\\') != std::string::npos) text = PlainText(text);
    text = DropWithBlanks(text, "-", "-");
    text = ReplaceEvery(JoinMixedNumbers(text), " ", "");
    text = Lowercase(ReplaceEvery(ReplaceEvery(text, "{", ""), "}", ""));
    const IntegerCheck check = CheckInteger(text);
    if (check.raises && variant_ == MathVariant::kMiles) return std::nullopt;
    if (!check.is_integer) return text;
    const std::optional<double> value = PythonFloat(ReplaceEvery(text, ",", ""));
    return value ? std::optional(PythonInt(*value)) : std::nullopt;
  }

 private:
  static std::string DropWords(std::string_view answer) {
    std::string text(answer);
    constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
        {"\\%", "%"},
        {"\\$", "$"},
        {"$", ""},
        {"%", ""},
        {" or ", " , "},
        {" and ", " , "},
        {"million", "*10^6"},
        {"billion", "*10^9"},
        {"trillion", "*10^12"}};
    for (const auto& [from, to] : kReplacements) text = ReplaceEvery(text, from, to);
    for (const std::string_view unit : kUnits) text = DropUnit(text, unit);
    text = DropDegreeSigns(text);
    if (text.size() > 1 && text.front() == '{' && text.back() == '}') {
      text = text.substr(1, text.size() - 2);
    }
    return DropWithBlanks(text, ",\\!", "");
  }

  static std::string PlainText(const std::string& latex) {
    std::string text = ReplaceEvery(ReplaceEvery(latex, "\\tfrac", "\\frac"), "\\dfrac", "\\frac");
    text = ReplaceEvery(text, "\\frac", " \\frac");
    const std::optional<std::string> plain = LatexToText(text);
    if (!plain) return latex;
    text = *plain;
    constexpr std::pair<std::string_view, std::string_view> kSigns[] = {
        {"√", "sqrt"}, {"π", "pi"}, {"∞", "inf"}, {"∪", "U"}, {"·", "*"}, {"×", "*"}};
    for (const auto& [from, to] : kSigns) text = ReplaceEvery(text, from, to);
    return std::string(Strip(text));
  }

  MathVariant variant_;
};

// --- comparison
// ------------------------------------------------------------------------------------

constexpr std::string_view kBrackets = "()[]";

bool IsBracket(char c) { return kBrackets.find(c) != std::string_view::npos; }

// The elements of a tuple or interval; anything else is one element.
std::vector<std::string> Elements(const std::string& normalized) {
  const std::string text = DropThousandsCommas(normalized);
  if (text.empty()) return {};
  const bool bracketed = text.size() > 2 && IsBracket(text.front()) && IsBracket(text.back()) &&
                         std::none_of(text.begin() + 1, text.end() - 1, IsBracket);
  if (!bracketed) return {text};
  std::vector<std::string> elements;
  for (const std::string_view part :
       Split(std::string_view(text).substr(1, text.size() - 2), ",")) {
    elements.emplace_back(Strip(part));
  }
  return elements;
}

// -?[0-9]+.?/0*[1-9][0-9]*.?  with any single character where the pattern has ".?".
bool IsFraction(std::string_view text) {
  const size_t begin = text.starts_with('-') ? 1 : 0;
  size_t at = SkipRun(text, begin, IsDigit);
  if (at == begin) return false;
  if (at < text.size() && text[at] != '/') ++at;
  if (at >= text.size() || text[at] != '/') return false;
  const size_t denominator = at + 1;
  at = SkipRun(text, denominator, IsDigit);
  const std::string_view digits = text.substr(denominator, at - denominator);
  if (digits.find_first_not_of('0') == std::string_view::npos) return false;
  return text.size() - at <= 1;
}

// The original's guard: more than two unknown letters, or an exponent that could grow, is not
// tried.
bool MayEvaluate(const std::string& text) {
  const std::string rest = ReplaceEvery(ReplaceEvery(text, "sqrt", ""), "frac", "");
  std::set<char> letters;
  for (const char c : rest) {
    if (IsLetter(c)) letters.insert(c);
  }
  if (letters.size() > 2) return false;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '^') continue;
    if (text[i + 1] == '{' || text[i + 1] == '(') return false;
    const size_t end = SkipRun(text, i + 1, IsDigit);
    if (end - i - 1 >= 2 || (end > i + 1 && end < text.size() && text[end] == '^')) return false;
  }
  return true;
}

bool EqualForSympy(const std::string& truth, const std::string& given) {
  if (!MayEvaluate("(" + truth + ")-(" + given + ")")) return false;
  Expression a, b;
  return ReadPlainExpression(truth, &a) && ReadPlainExpression(given, &b) && EqualExpressions(a, b);
}

bool EqualElement(const std::string& truth, const std::string& given) {
  if (IsFraction(truth) && IsFraction(given)) return truth == given;  // unreduced ones are wrong
  if (CheckInteger(truth).is_integer != CheckInteger(given).is_integer) return false;
  return EqualForSympy(truth, given);
}

bool EqualNormalized(const std::string& truth, const std::string& given) {
  if (truth == given) return true;
  if (given.empty()) return false;
  const std::vector<std::string> a = Elements(truth), b = Elements(given);
  if (a.size() > 1 && (truth.front() != given.front() || truth.back() != given.back()))
    return false;
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), EqualElement);
}

}  // namespace

Outcome GradeMathParity(std::string_view response, std::string_view label, MathVariant variant) {
  if (label.empty()) return Outcome::Scored(0, "the prompt has no label, which counts as wrong");
  std::optional<std::string_view> truth = label;
  if (label.find("\\boxed") != std::string_view::npos) truth = LastBox(label);
  const std::optional<std::string_view> given = LastBox(response);
  if (!given) return Outcome::Scored(0, "no \\boxed{} answer");
  if (!truth)
    return Outcome::Scored(0, "the label's \\boxed{} is not closed, which counts as wrong");
  const std::string shown = fmt::format("'{}' against '{}'", Shorten(*given), Shorten(*truth));
  if (given->size() > kMaxAnswerBytes) return Outcome::Scored(0, "the answer is too long");
  if (NormalizeMathd(*given) == NormalizeMathd(*truth)) {
    return Outcome::Scored(1, shown + ": equal after mathd normalisation");
  }
  const Normalizer normalizer(variant);
  const std::optional<std::string> a = normalizer.Normalize(*truth);
  const std::optional<std::string> b = normalizer.Normalize(*given);
  const bool equal = a && b && EqualNormalized(*a, *b);
  return Outcome::Scored(equal ? 1 : 0,
                         shown + (equal ? ": equal after sympy normalisation" : ": different"));
}

}  // namespace orrery::rewards

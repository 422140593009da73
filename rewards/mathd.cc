#include "rewards/mathd.h"

#include <optional>
#include <vector>

#include "orchestrator/base/utf8.h"
#include "rewards/python_number.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr std::string_view kFrac = "\\frac";
constexpr std::string_view kSqrt = "\\sqrt";

// The first character (not byte) of `text`; empty at its end.
std::string_view FirstCharacter(std::string_view text) {
  return text.substr(0, std::max<size_t>(1, Utf8CharacterSize(text, 0)));
}

// \sqrt3 -> \sqrt{3}. nullopt: the original raises, and the whole normalisation is given up.
std::optional<std::string> BraceRoots(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, kSqrt);
  std::string out(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty()) return std::nullopt;
    const std::string_view first = FirstCharacter(parts[i]);
    out += kSqrt;
    if (first == "{") {
      out += parts[i];
    } else {
      out.append("{").append(first).append("}").append(parts[i].substr(first.size()));
    }
  }
  return out;
}

// \frac12 -> \frac{1}{2}, \frac1{72} -> \frac{1}{72}; unchanged where an argument is missing.
std::optional<std::string> BraceFractions(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, kFrac);
  std::string out(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part.empty()) return std::nullopt;
    out += kFrac;
    if (part[0] == '{') {
      out += part;
      continue;
    }
    const std::string_view numerator = FirstCharacter(part);
    part.remove_prefix(numerator.size());
    if (part.empty()) return std::string(text);
    out.append("{").append(numerator).append("}");
    if (part[0] == '{') {
      out += part;
    } else {
      const std::string_view denominator = FirstCharacter(part);
      out.append("{").append(denominator).append("}").append(part.substr(denominator.size()));
    }
  }
  return out;
}

// a/b of two plain integers -> \frac{a}{b}.
std::string SlashToFraction(std::string text) {
  const std::vector<std::string_view> parts = Split(text, "/");
  if (parts.size() != 2 || !IsCanonicalInteger(parts[0]) || !IsCanonicalInteger(parts[1]))
    return text;
  return std::string(kFrac).append("{").append(parts[0]).append("}{").append(parts[1]).append("}");
}

// Everything from the one "\text{ " on is a unit; nullopt (raises) where there are several.
std::optional<std::string> DropUnit(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, "\\text{ ");
  if (parts.size() > 2) return std::nullopt;
  return std::string(parts[0]);
}

std::string DropMarks(std::string_view text) {
  std::string out(text);
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
      {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""}};
  for (const auto& [from, to] : kReplacements) out = ReplaceEvery(out, from, to);
  return out;
}

// "x=5" -> "5", where what stands before the sign is at most two characters.
std::string DropName(const std::string& text) {
  const std::vector<std::string_view> sides = Split(text, "=");
  if (sides.size() == 2 && CountCharacters(sides[0]) <= 2) return std::string(sides[1]);
  return text;
}

std::optional<std::string> StripString(std::string_view answer) {
  std::optional<std::string> text = DropUnit(DropMarks(answer));
  if (!text) return std::nullopt;
  *text = ReplaceEvery(*text, "\\%", "");
  *text = ReplaceEvery(ReplaceEvery(*text, " .", " 0."), "{.", "{0.");
  if (text->empty()) return text;
  if (text->front() == '.') text = std::string("0").append(*text);
  text = BraceRoots(DropName(*text));
  if (!text) return std::nullopt;
  text = BraceFractions(ReplaceEvery(*text, " ", ""));
  if (!text) return std::nullopt;
  if (*text == "0.5") return "\\frac{1}{2}";
  return SlashToFraction(*std::move(text));
}

}  // namespace

std::string_view InsideText(std::string_view answer) {
  constexpr std::string_view kText = "\\text{";
  if (!answer.starts_with(kText) || !answer.ends_with('}')) return answer;
  const std::string_view content = answer.substr(kText.size(), answer.size() - kText.size() - 1);
  return content.empty() || content.find('\n') != std::string_view::npos ? answer : content;
}

std::string NormalizeMathd(std::string_view answer) {
  answer = Strip(answer);
  const std::string_view inside = InsideText(answer);
  if (inside.data() != answer.data()) answer = Strip(inside);
  return StripString(answer).value_or(std::string(answer));
}

}  // namespace orrery::rewards

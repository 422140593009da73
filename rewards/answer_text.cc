#include "rewards/answer_text.h"

#include <algorithm>
#include <vector>

#include "rewards/pattern.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

struct Box {
  size_t begin = 0;
  size_t end = 0;  // behind the closing brace
  std::string_view content;
  bool closed = true;
};

// The box whose command begins at `at`: \boxed{18}, \boxed {18}, \boxed 18.
Box ReadBox(std::string_view text, size_t at, size_t command_size) {
  size_t open = at + command_size;
  while (open < text.size() && IsSpace(text[open])) ++open;
  if (open < text.size() && text[open] == '{') {
    const size_t close = ClosingBrace(text, open);
    if (close == std::string_view::npos) return {at, text.size(), {}, false};
    return {at, close + 1, text.substr(open + 1, close - open - 1)};
  }
  size_t end = open;
  while (end < text.size() && !IsSpace(text[end]) && text[end] != '$') ++end;
  return {at, end, text.substr(open, end - open)};
}

// Outermost boxes, in order.
std::vector<Box> AllBoxes(std::string_view text) {
  std::vector<Box> boxes;
  size_t from = 0;
  while (true) {
    const size_t boxed = text.find("\\boxed", from);
    const size_t fbox = text.find("\\fbox", from);
    const size_t at = std::min(boxed, fbox);
    if (at == std::string_view::npos) return boxes;
    boxes.push_back(ReadBox(text, at, at == boxed ? 6 : 5));
    from = std::max(boxes.back().end, at + 5);
  }
}

// Whether two boxes belong to one answer: \boxed{1} and $\boxed{2}$.
bool IsConnector(std::string_view between) {
  std::string words = Lowercase(between);
  for (const std::string_view noise : {"$", ",", "\\text", "{", "}", "\\quad", "\\(", "\\)"}) {
    words = ReplaceEvery(words, noise, " ");
  }
  const std::string_view word = Strip(words);
  const bool comma = between.find(',') != std::string_view::npos;
  return word == "and" || word == "or" || (word.empty() && comma);
}

FoundAnswer FromBoxes(std::string_view text, const std::vector<Box>& boxes) {
  if (!boxes.back().closed) return {"", "the last \\boxed{ is not closed", false};
  size_t first = boxes.size() - 1;
  while (
      first > 0 && boxes[first - 1].closed &&
      IsConnector(text.substr(boxes[first - 1].end, boxes[first].begin - boxes[first - 1].end))) {
    --first;
  }
  std::string answer(Strip(boxes[first].content));
  for (size_t i = first + 1; i < boxes.size(); ++i) {
    answer.append(" , ").append(Strip(boxes[i].content));
  }
  if (answer.empty()) return {"", "the last \\boxed{} is empty", false};
  return {std::move(answer), "\\boxed", true};
}

std::string_view RestOfLine(std::string_view text, size_t from) {
  const size_t end = text.find('\n', from);
  return Strip(text.substr(from, end == std::string_view::npos ? end : end - from));
}

// The sentence ends at a full stop that is followed by a space.
std::string_view FirstSentence(std::string_view line) {
  const size_t stop = line.find(". ");
  return stop == std::string_view::npos ? line : line.substr(0, stop);
}

std::optional<std::string> AfterWords(std::string_view text) {
  static const Pattern pattern =
      Pattern::Fixed("(?i)\\banswer(?:\\s+is|\\s*:)\\s*:?\\**[ \\t]*([^\\n]+)");
  Pattern::Match match;
  const absl::StatusOr<bool> found = pattern.SearchLast(text, &match);
  if (!found.ok() || !*found) return std::nullopt;
  std::string_view line = FirstSentence(Strip(match.groups[1]));
  while (!line.empty() && line.front() == '*') line.remove_prefix(1);  // Markdown's bold
  while (!line.empty() && line.back() == '*') line.remove_suffix(1);
  return std::string(Strip(line));
}

std::optional<std::string> LastNumber(std::string_view text) {
  static const Pattern pattern =
      Pattern::Fixed("-?(?:\\d{1,3}(?:,\\d{3})+|\\d+)(?:\\.\\d+)?|-?\\.\\d+");
  Pattern::Match match;
  constexpr size_t kWindow = 4096;
  const absl::StatusOr<bool> found = pattern.SearchLast(LastCharacters(text, kWindow), &match);
  if (!found.ok() || !*found) return std::nullopt;
  return std::string(match.groups[0]);
}

}  // namespace

std::optional<std::string_view> LastBoxed(std::string_view text) {
  const std::vector<Box> boxes = AllBoxes(text);
  if (boxes.empty() || !boxes.back().closed) return std::nullopt;
  return boxes.back().content;
}

FoundAnswer FindAnswer(std::string_view response, const ExtractOptions& options) {
  const std::string_view text = AfterThinking(response);
  if (text.find("<think>") != std::string_view::npos) return {"", "the thinking has no end", false};
  const std::vector<Box> boxes = AllBoxes(text);
  if (!boxes.empty()) return FromBoxes(text, boxes);
  if (const size_t at = text.rfind("####"); at != std::string_view::npos) {
    const std::string_view line = RestOfLine(text, at + 4);
    if (!line.empty()) return {std::string(line), "####", true};
  }
  if (std::optional<std::string> words = AfterWords(text); words && !words->empty()) {
    return {*std::move(words), "answer is", true};
  }
  if (options.last_number) {
    if (std::optional<std::string> number = LastNumber(text)) {
      return {*std::move(number), "last number", true};
    }
  }
  return {"", "no answer found", false};
}

}  // namespace orrery::rewards

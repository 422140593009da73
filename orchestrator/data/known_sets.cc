#include "orchestrator/data/known_sets.h"

#include <algorithm>

namespace orrery::data {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// What stands in the braces that `text` begins with; nothing where they do not match.
std::optional<std::string> Braced(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;  // \{ and \} are characters
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return std::string(Trimmed(text.substr(1, i - 1)));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Gsm8kAnswer(std::string_view solution) {
  const size_t mark = solution.rfind("####");
  if (mark == std::string_view::npos) return std::nullopt;
  std::string answer(Trimmed(solution.substr(mark + 4)));
  answer.erase(std::remove(answer.begin(), answer.end(), ','), answer.end());
  if (answer.empty()) return std::nullopt;
  return answer;
}

std::string WithoutAnnotations(std::string_view solution) {
  std::string text;
  while (true) {
    const size_t begin = solution.find("<<");
    const size_t end = begin == std::string_view::npos ? begin : solution.find(">>", begin);
    if (end == std::string_view::npos) return text += solution;
    text += solution.substr(0, begin);
    solution.remove_prefix(end + 2);
  }
}

std::optional<std::string> LastBoxed(std::string_view solution) {
  size_t begin = std::string_view::npos;
  for (const std::string_view command : {"\\boxed", "\\fbox"}) {
    const size_t at = solution.rfind(command);
    if (at == std::string_view::npos) continue;
    if (begin == std::string_view::npos || at + command.size() > begin) begin = at + command.size();
  }
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view rest = solution.substr(begin);
  if (rest.starts_with('{')) return Braced(rest);
  if (!rest.starts_with(' ')) return std::nullopt;
  const std::string_view word = Trimmed(rest.substr(0, rest.find('$')));
  if (word.empty()) return std::nullopt;
  return std::string(word);
}

}  // namespace orrery::data

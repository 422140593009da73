#include "rewards/text.h"

#include "orchestrator/base/utf8.h"

namespace orrery::rewards {

std::string_view Strip(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string Lowercase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string ReplaceEvery(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos;
       begin = at + from.size()) {
    out.append(text.substr(begin, at - begin)).append(to);
  }
  return out.append(text.substr(begin));
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string_view::npos;
       begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

namespace {
bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
}  // namespace

std::string_view LastCharacters(std::string_view text, size_t count) {
  size_t begin = text.size();
  while (count > 0 && begin > 0) {
    size_t back = 1;  // try to step over one whole character, at most four bytes
    while (back < 4 && back < begin && IsContinuation(text[begin - back])) ++back;
    begin -= Utf8CharacterSize(text, begin - back) == back ? back : 1;
    --count;
  }
  return text.substr(begin);
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const size_t size = Utf8CharacterSize(text, at);
    at += size == 0 ? 1 : size;
  }
  return count;
}

std::string ValidUtf8(std::string_view text) {
  if (FindInvalidUtf8(text) == std::string_view::npos) return std::string(text);
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    const size_t size = Utf8CharacterSize(text, at);
    valid += size == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(at, size);
    at += size == 0 ? 1 : size;
  }
  return valid;
}

std::string_view AfterThinking(std::string_view response) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = response.rfind(kEnd);
  return at == std::string_view::npos ? response : response.substr(at + kEnd.size());
}

size_t ClosingBrace(std::string_view text, size_t open) {
  size_t depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && depth > 0 && --depth == 0) return i;
  }
  return std::string_view::npos;
}

}  // namespace orrery::rewards

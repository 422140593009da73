#include "rollout/text/jinja_text.h"

#include <fmt/format.h>
#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace orrery::rollout::jinja {

CodePoint DecodeAt(std::string_view text, size_t offset) {
  const auto first = static_cast<uint8_t>(text[offset]);
  if (first < 0x80) return {first, 1};
  int32_t value = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + offset);
  const auto left = static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - offset, 4));
  const utf8proc_ssize_t size = utf8proc_iterate(bytes, left, &value);
  if (size <= 0 || value < 0) return {-1, 1};
  return {value, static_cast<size_t>(size)};
}

// The white space of str.isspace(): bidirectional type WS, B or S, or category Zs.
bool IsSpace(int32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += DecodeAt(text, i).size) ++count;
  return count;
}

std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += DecodeAt(text, i).size) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

namespace {

// The offset at which the code point that ends at `end` begins.
size_t PreviousOffset(std::string_view text, size_t end) {
  for (size_t size = std::min<size_t>(4, end); size > 1; --size) {
    if (DecodeAt(text, end - size).size == size) return end - size;
  }
  return end - 1;
}

bool Contains(std::string_view characters, std::string_view one) {
  for (size_t i = 0; i < characters.size();) {
    const size_t size = DecodeAt(characters, i).size;
    if (characters.substr(i, size) == one) return true;
    i += size;
  }
  return false;
}

bool Strippable(std::string_view text, size_t begin, size_t end,
                std::optional<std::string_view> characters) {
  if (characters) return Contains(*characters, text.substr(begin, end - begin));
  return IsSpace(DecodeAt(text, begin).value);
}

}  // namespace

std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    const size_t next = begin + DecodeAt(text, begin).size;
    if (!Strippable(text, begin, next, characters)) break;
    begin = next;
  }
  while (side != Side::kLeft && end > begin) {
    const size_t previous = PreviousOffset(text, end);
    if (!Strippable(text, previous, end, characters)) break;
    end = previous;
  }
  return text.substr(begin, end - begin);
}

size_t FindText(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  // memmem is linear (two-way), which std::string::find is not.
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<std::string_view> SplitSpace(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = Strip(text, Side::kLeft);
  while (!text.empty()) {
    size_t end = 0;
    while (end < text.size() && !IsSpace(DecodeAt(text, end).value))
      end += DecodeAt(text, end).size;
    if (static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text);
      break;
    }
    parts.push_back(text.substr(0, end));
    text = Strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = FindText(text, separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> SplitFromRight(std::string_view text, std::string_view separator,
                                             int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  const auto is_break = [](int32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = DecodeAt(text, i);
    if (!is_break(c.value)) {
      i += c.size;
      continue;
    }
    lines.push_back(text.substr(begin, i - begin));
    i += text.substr(i, 2) == "\r\n" ? 2 : c.size;
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

size_t CountText(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return CountCodePoints(text) + 1;
  size_t count = 0;
  for (size_t i = FindText(text, wanted); i != std::string_view::npos;
       i = FindText(text, wanted, i + wanted.size())) {
    ++count;
  }
  return count;
}

namespace {

std::string InsertBetweenCharacters(std::string_view text, std::string_view inserted,
                                    int64_t max_count) {
  std::string out;
  for (size_t i = 0; i <= text.size();) {
    if (max_count-- > 0) out += inserted;
    if (i == text.size()) break;
    const size_t size = DecodeAt(text, i).size;
    out += text.substr(i, size);
    i += size;
  }
  return out;
}

}  // namespace

std::string Replace(std::string_view text, std::string_view old_text, std::string_view new_text,
                    int64_t max_count) {
  if (old_text.empty()) return InsertBetweenCharacters(text, new_text, max_count);
  std::string out;
  size_t begin = 0;
  while (max_count-- > 0) {
    const size_t found = FindText(text, old_text, begin);
    if (found == std::string_view::npos) break;
    out += text.substr(begin, found - begin);
    out += new_text;
    begin = found + old_text.size();
  }
  out += text.substr(begin);
  return out;
}

void AppendUtf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int continuation = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[continuation] | (c >> (6 * continuation)));
  for (int i = continuation - 1; i >= 0; --i) {
    out += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3f));
  }
}

namespace {

void AppendUpper(int32_t c, std::string& out) {
  if (c == 0xdf) {
    out += "SS";
  } else {
    AppendUtf8(static_cast<uint32_t>(utf8proc_toupper(c)), out);
  }
}

void AppendLower(int32_t c, std::string& out) {
  AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(c)), out);
}

bool IsCased(int32_t c) {
  if (c < 0) return false;
  const utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Applies `append(code point, position is at the start of a word)` to each character.
template <typename Append>
std::string MapCharacters(std::string_view text, Append append) {
  std::string out;
  out.reserve(text.size());
  bool after_cased = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = DecodeAt(text, i);
    if (c.value < 0) {
      out += text[i];
    } else {
      append(c.value, i == 0, after_cased, out);
    }
    after_cased = IsCased(c.value);
    i += c.size;
  }
  return out;
}

}  // namespace

std::string Upper(std::string_view text) {
  return MapCharacters(text, [](int32_t c, bool, bool, std::string& out) { AppendUpper(c, out); });
}

std::string Lower(std::string_view text) {
  return MapCharacters(text, [](int32_t c, bool, bool, std::string& out) { AppendLower(c, out); });
}

std::string Capitalize(std::string_view text) {
  return MapCharacters(text, [](int32_t c, bool first, bool, std::string& out) {
    first ? AppendUpper(c, out) : AppendLower(c, out);
  });
}

std::string Title(std::string_view text) {
  return MapCharacters(text, [](int32_t c, bool, bool after_cased, std::string& out) {
    after_cased ? AppendLower(c, out) : AppendUpper(c, out);
  });
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

namespace {

// str.isprintable(): everything but controls, formats, surrogates, private use, unassigned and
// separators other than the space.
bool IsPrintable(int32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendEscaped(int32_t c, std::string& out) {
  if (c < 0x100) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", c);
  } else if (c < 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
  } else {
    fmt::format_to(std::back_inserter(out), "\\U{:08x}", c);
  }
}

}  // namespace

std::string ReprText(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = DecodeAt(text, i);
    if (c.value == quote || c.value == '\\') {
      out += {'\\', static_cast<char>(c.value)};
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += {'\\', c.value == '\n' ? 'n' : c.value == '\r' ? 'r' : 't'};
    } else if (c.value < 0 || IsPrintable(c.value)) {
      out += text.substr(i, c.size);
    } else {
      AppendEscaped(c.value, out);
    }
    i += c.size;
  }
  return out + quote;
}

// The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16
// (Python's float.__repr__).
std::string ReprFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shown(buffer, static_cast<size_t>(scientific.ptr - buffer));
  const size_t e = shown.find('e');
  int exponent = 0;
  const char* digits = shown.data() + e + (shown[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, shown.data() + shown.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shown);
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace orrery::rollout::jinja

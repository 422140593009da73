#include "rollout/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace orrery::rollout {
namespace {

// The table 3-7 of the Unicode standard: which second bytes follow a leading byte.
struct Lead {
  int length = 0;  // 0: not a leading byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Char ReadUtf8(std::string_view text) {
  const auto byte = [&](int i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = LeadOf(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {kReplacementCharacter, 1, false, false};
  char32_t code_point = byte(0) & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {kReplacementCharacter, i, false, true};
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < low || byte(i) > high) return {kReplacementCharacter, i, false, false};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  return {code_point, lead.length, true, false};
}

char32_t LastUtf8(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return ReadUtf8(text.substr(begin)).code_point;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const int extra = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  const uint32_t mark[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(mark[extra] | (c >> (6 * extra))));
  for (int i = extra - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
  }
}

std::string EncodeUtf8(char32_t code_point) {
  std::string out;
  AppendUtf8(code_point, &out);
  return out;
}

bool IsAscii(std::string_view text) { return AsciiPrefix(text) == text.size(); }

bool IsValidUtf8(std::string_view text) {
  while (true) {
    text.remove_prefix(AsciiPrefix(text));
    if (text.empty()) return true;
    const Utf8Char c = ReadUtf8(text);
    if (!c.valid) return false;
    text.remove_prefix(c.length);
  }
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    const Utf8Char c = ReadUtf8(text);
    AppendUtf8(c.code_point, &out);
    text.remove_prefix(c.length);
  }
  return out;
}

void TakeFinishedUtf8(std::string* pending, std::string* out) {
  std::string_view rest = *pending;
  while (!rest.empty()) {
    const size_t ascii = AsciiPrefix(rest);
    out->append(rest.substr(0, ascii));
    rest.remove_prefix(ascii);
    if (rest.empty()) break;
    const Utf8Char c = ReadUtf8(rest);
    if (c.cut_off) break;
    AppendUtf8(c.code_point, out);
    rest.remove_prefix(c.length);
  }
  pending->erase(0, pending->size() - rest.size());
}

}  // namespace orrery::rollout

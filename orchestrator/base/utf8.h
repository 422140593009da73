// Checks of UTF-8 text from outside: where it is broken, and cutting it without breaking it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace orrery {

// Bytes of the character that begins at `offset`, 0 where none does: a stray or missing
// continuation byte, an over-long form, a surrogate, a value above 0x10ffff (Unicode 15, table
// 3-7).
inline size_t Utf8CharacterSize(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) -> uint8_t {
    return offset + i < text.size() ? static_cast<uint8_t>(text[offset + i]) : 0;
  };
  const auto between = [&](size_t i, uint8_t low, uint8_t high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return offset < text.size() ? 1 : 0;
  if (first >= 0xc2 && first <= 0xdf) return between(1, 0x80, 0xbf) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const uint8_t low = first == 0xe0 ? 0xa0 : 0x80;
    const uint8_t high = first == 0xed ? 0x9f : 0xbf;
    return between(1, low, high) && between(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const uint8_t low = first == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xf4 ? 0x8f : 0xbf;
    return between(1, low, high) && between(2, 0x80, 0xbf) && between(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

// Offset of the first byte that does not belong to a character; npos where all is well.
inline size_t FindInvalidUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const size_t size = Utf8CharacterSize(text, offset);
    if (size == 0) return offset;
    offset += size;
  }
  return std::string_view::npos;
}

// For showing text in a message: at most about `max_bytes`, cut between characters with "..."
// behind, line breaks and other control characters as \n and \xNN, broken bytes as \xNN.
inline std::string ShortenUtf8(std::string_view text, size_t max_bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  for (size_t offset = 0; offset < text.size();) {
    if (shown.size() >= max_bytes) return shown + "...";
    const size_t size = Utf8CharacterSize(text, offset);
    const auto byte = static_cast<uint8_t>(text[offset]);
    if (byte == '\n') {
      shown += "\\n";
    } else if (size == 0 || byte < 0x20 || byte == 0x7f) {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      shown += text.substr(offset, size);
    }
    offset += size == 0 ? 1 : size;
  }
  return shown;
}

}  // namespace orrery

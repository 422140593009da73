// UTF-8 as the tokenizer needs it: reading characters one by one, and the replacement of malformed
// bytes that Python's errors="replace" and Rust's from_utf8_lossy share (Unicode 16, section 3.9,
// "maximal subpart": each longest beginning of a character that goes wrong becomes one U+FFFD).
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery::rollout {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// What stands at the beginning of a text.
struct Utf8Char {
  char32_t code_point = 0;  // kReplacementCharacter where malformed
  int length = 0;           // bytes it takes, at least 1
  bool valid = false;
  bool cut_off = false;  // malformed only because the text ends too early
};

// REQUIRES: text is not empty.
Utf8Char ReadUtf8(std::string_view text);

// The character that ends at text.end(). REQUIRES: text is not empty and valid.
char32_t LastUtf8(std::string_view text);

void AppendUtf8(char32_t code_point, std::string* out);
std::string EncodeUtf8(char32_t code_point);

bool IsAscii(std::string_view text);
bool IsValidUtf8(std::string_view text);

// `text` with each malformed piece replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

// Moves the front of `pending` that no later byte can change to `out`, malformed pieces replaced;
// keeps at most the 3 bytes of an unfinished character.
void TakeFinishedUtf8(std::string* pending, std::string* out);

}  // namespace orrery::rollout

// Small operations on a response's text that several rewards share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orrery::rewards {

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string_view Strip(std::string_view text);
std::string Lowercase(std::string_view text);  // ASCII letters only
std::string ReplaceEvery(std::string_view text, std::string_view from, std::string_view to);
std::vector<std::string_view> Split(std::string_view text, std::string_view separator);

// The last `count` characters of UTF-8 text (a broken byte counts as one).
std::string_view LastCharacters(std::string_view text, size_t count);
size_t CountCharacters(std::string_view text);

// Broken bytes become U+FFFD.
std::string ValidUtf8(std::string_view text);

// What follows the last </think>; the whole text where there is none.
std::string_view AfterThinking(std::string_view response);

// Index of the brace that closes the one at `open`; npos where none does.
size_t ClosingBrace(std::string_view text, size_t open);

}  // namespace orrery::rewards

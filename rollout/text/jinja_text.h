// Python's str operations on UTF-8 bytes, as chat templates use them: positions and lengths count
// code points, white space is Unicode's, and str() and repr() of numbers and strings are Python's.
// Bytes that are not UTF-8 count as one character each and pass through.
//
// Case mapping is Unicode's simple one (plus the German sharp s); Python's full mapping differs for
// a few ligatures and for the final sigma. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::rollout::jinja {

// The code point at `offset` and its bytes; -1 and one byte where none is. REQUIRES: offset < size.
struct CodePoint {
  int32_t value;
  size_t size;
};
CodePoint DecodeAt(std::string_view text, size_t offset);

bool IsSpace(int32_t code_point);  // str.isspace()
size_t CountCodePoints(std::string_view text);
// Byte offset of each code point, and the size at the end.
std::vector<size_t> CodePointOffsets(std::string_view text);

enum class Side : uint8_t { kLeft, kRight, kBoth };
// Strips white space, or any of the code points in `characters`.
std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters = std::nullopt);

// First occurrence in linear time, npos where there is none.
size_t FindText(std::string_view text, std::string_view wanted, size_t from = 0);

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
// By white space. At most max_splits splits; the rest stays whole.
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t max_splits);
// REQUIRES: separator is not empty.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    int64_t max_splits);
std::vector<std::string_view> SplitFromRight(std::string_view text, std::string_view separator,
                                             int64_t max_splits);
std::vector<std::string_view> SplitLines(std::string_view text);

// Occurrences without overlap; an empty `wanted` is found between all characters, as in Python.
size_t CountText(std::string_view text, std::string_view wanted);
std::string Replace(std::string_view text, std::string_view old_text, std::string_view new_text,
                    int64_t max_count);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Title(std::string_view text);

std::string EscapeHtml(std::string_view text);  // & < > " ' as markupsafe writes them

std::string ReprText(std::string_view text);  // repr("it's") -> "it's" in double quotes
std::string ReprFloat(double value);          // 1.0, 1e-05, inf, nan

void AppendUtf8(uint32_t code_point, std::string& out);

}  // namespace orrery::rollout::jinja

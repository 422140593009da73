#include "orchestrator/run/markup.h"

#include "orchestrator/base/utf8.h"

namespace orrery::run {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::string_view EscapeAscii(std::string_view character) {
  switch (character[0]) {
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '&':
      return "&amp;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\t':
      return "&#9;";
    case '\n':
      return "&#10;";
    case '\r':
      return "&#13;";
    default:
      return character[0] < 0x20 ? kReplacement : character;
  }
}

}  // namespace

std::string EscapeMarkup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t size = Utf8CharacterSize(text, i);
    const std::string_view character = text.substr(i, size);
    if (size == 1) {
      out += EscapeAscii(character);
    } else {
      const bool writable = size > 0 && character != "\xef\xbf\xbe" && character != "\xef\xbf\xbf";
      out += writable ? character : kReplacement;
    }
    i += size == 0 ? 1 : size;
  }
  return out;
}

}  // namespace orrery::run

#include "rollout/text/unicode_text.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>

#include "orchestrator/base/check.h"
#include "rollout/text/unicode_versions.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

bool IsMark(const utf8proc_property_t& property) {
  return property.category == UTF8PROC_CATEGORY_MN || property.category == UTF8PROC_CATEGORY_MC ||
         property.category == UTF8PROC_CATEGORY_ME;
}

// A character that does not change and combines with nothing before it. Whatever does combine with
// the character before is a mark or a Hangul jamo.
bool IsInert(char32_t c) {
  if (c < 0xA0) return true;
  if (c >= 0x4E00 && c < 0xA000) return true;  // the large block of ideographs
  if (c >= 0x1100 && c < 0x1200) return false;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX &&
         !IsMark(*property);
}

bool IsPlainHangulSyllable(char32_t c) { return c >= 0xAC00 && c < 0xD7A4; }

// Most texts are in form C throughout: ASCII, inert characters and, for Latin-1 letters and Hangul
// syllables, the composed characters themselves as long as nothing follows that combines.
bool IsSurelyComposed(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = ReadUtf8(text);
    const bool latin = c.code_point < 0x300;
    if (!latin && !IsPlainHangulSyllable(c.code_point) && !IsInert(c.code_point)) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

void NormalizeRun(NormalForm form, std::string_view run, std::string* out) {
  if (run.empty()) return;
  int options = UTF8PROC_STABLE | (form.composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (form.compatibility) options |= UTF8PROC_COMPAT;
  const auto* input = reinterpret_cast<const utf8proc_uint8_t*>(run.data());
  const auto length = static_cast<utf8proc_ssize_t>(run.size());
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(input, length, &result, static_cast<utf8proc_option_t>(options));
  CHECK_GE(size, 0) << utf8proc_errmsg(size);  // valid UTF-8 was promised; else out of memory
  out->append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
  std::free(result);
}

}  // namespace

bool Normalize(NormalForm form, std::string_view text, std::string* out) {
  if (IsAscii(text)) return false;
  if (form.composed && !form.compatibility && IsSurelyComposed(text)) return false;
  out->clear();
  size_t run_begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = ReadUtf8(text.substr(i));
    if (c.code_point >= 0x300 && IsInertInNormalization(c.code_point)) {
      NormalizeRun(form, text.substr(run_begin, i - run_begin), out);
      out->append(text.substr(i, c.length));
      run_begin = i + c.length;
    }
    i += c.length;
  }
  NormalizeRun(form, text.substr(run_begin), out);
  return true;
}

void AppendLowercase(std::string_view text, std::string* out) {
  while (!text.empty()) {
    const Utf8Char c = ReadUtf8(text);
    if (c.code_point == 0x130) {  // the one character whose full mapping is longer
      out->append("i\xCC\x87");
    } else {
      const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point));
      AppendUtf8(static_cast<char32_t>(lower), out);
    }
    text.remove_prefix(c.length);
  }
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  const bool joiner = c == 0x200C || c == 0x200D;
  const bool alphabetic_symbol = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                                 (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  if (joiner || alphabetic_symbol) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  for (const CategoryRange& range : CategoriesSinceUnicode14()) {
    if (c < range.first || c > range.last) continue;
    const char kind = range.category[0];
    return kind == 'L' || kind == 'M' || std::string_view(range.category) == "Nd";
  }
  return false;
}

}  // namespace orrery::rollout

// Oniguruma's regular expressions (Ruby syntax, what Hugging Face's tokenizers compile) rewritten
// for PCRE2, so that both match the same text:
//   * \s is Unicode's White_Space in Oniguruma; PCRE2 adds U+180E. Written out as ranges.
//   * \p{L} and the other categories get the characters that Unicode gained after version 14.
//   * {,n} is {0,n}; ^ and $ are always per line (PCRE2_MULTILINE).
// What the two read differently and no known tokenizer uses is refused by name: nested classes and
// &&, {n,m}+ and {n}? (not possessive, not lazy in Ruby), (?m), \h, \w, \b, back references, verbs.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::rollout {

absl::StatusOr<std::string> OnigurumaToPcre2(std::string_view pattern);

}  // namespace orrery::rollout

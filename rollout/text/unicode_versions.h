// Where Unicode's versions differ between our libraries and Hugging Face's tokenizers 0.23: its
// regular expressions follow Unicode 16, its normal forms Unicode 9, while PCRE2 and utf8proc
// follow whatever the system's packages do (14 on Debian 12). Facts of the Unicode Character
// Database; tests/rollout/text/tokenizer_unicode_test.cc holds them against golden values of the
// oracle.
#pragma once

#include <span>

namespace orrery::rollout {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

struct CategoryRange {
  char32_t first;
  char32_t last;
  const char* category;  // two letters, "Lu"
};

// Assigned in Unicode 15 to 16 (or moved to another category there), ascending.
std::span<const CategoryRange> CategoriesSinceUnicode14();

// Characters younger than Unicode 9 that have a decomposition or a combining class: Hugging Face's
// normal forms know neither, so that such a character passes and nothing moves across it.
bool IsInertInNormalization(char32_t c);

}  // namespace orrery::rollout

// Normal forms, case and character classes as Hugging Face's tokenizers have them; see
// unicode_versions.h for where they differ from the newest Unicode. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace orrery::rollout {

struct NormalForm {
  bool composed = true;        // C against D
  bool compatibility = false;  // K
};

// False where `text` is in that form already; *out is then untouched. REQUIRES: valid UTF-8.
bool Normalize(NormalForm form, std::string_view text, std::string* out);

// Character by character, without regard to context (no final sigma).
void AppendLowercase(std::string_view text, std::string* out);

bool IsWhiteSpace(char32_t c);     // the property White_Space
bool IsWordCharacter(char32_t c);  // \w: alphabetic, marks, decimal numbers, connectors, joiners

}  // namespace orrery::rollout

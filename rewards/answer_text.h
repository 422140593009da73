// Where in a response the answer is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace orrery::rewards {

struct ExtractOptions {
  bool last_number = false;  // where nothing else is found
};

struct FoundAnswer {
  std::string text;
  std::string how;  // "\boxed", "####", "answer is", "last number"; or why there is none
  bool found = false;
};

// Looks behind the last </think>, in this order: the last \boxed{...} or \fbox{...} (several in a
// row, joined by nothing but "and", "or" and commas, count as one list); the rest of the last line
// with
// "####"; what follows the last "answer is" or "answer:"; the last number. A box that is not
// closed, or thinking that is not, is an answer not given: what stands before is not taken instead.
FoundAnswer FindAnswer(std::string_view response, const ExtractOptions& options);

// The content of the last \boxed{...}, braces matched; nullopt where there is none or it is not
// closed.
std::optional<std::string_view> LastBoxed(std::string_view text);

}  // namespace orrery::rewards

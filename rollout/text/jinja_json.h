// JSON text to template values and back. Back is Python's json.dumps as transformers' chat
// templates call it: separators ", " and ": ", order of insertion, and no escaping of what is not
// ASCII.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rollout/text/jinja_value.h"

namespace orrery::rollout::jinja {

// Strict JSON (RFC 8259) in UTF-8; a key given twice keeps its first place and last value, as in
// Python. Integers beyond 64 bits keep their digits. `what` names the text in errors.
absl::StatusOr<Value> FromJson(std::string_view text, std::string_view what);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ";  // json.dumps takes "," where indent is given
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace orrery::rollout::jinja

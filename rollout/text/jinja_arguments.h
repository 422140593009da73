// Reading arguments of built-ins as the type they need. Internal to the tables of built-ins.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rollout/text/jinja_builtins.h"

namespace orrery::rollout::jinja {

// Null and none are absent.
inline bool IsAbsent(const Value* value) { return value == nullptr || value->Is(Kind::kNone); }

inline absl::Status WrongType(std::string_view parameter, std::string_view expected,
                              const Value& value) {
  if (value.Is(Kind::kUndefined)) return InvalidInput("'{}': {}", parameter, value.hint());
  return InvalidInput("'{}' must be {}, not a {}", parameter, expected, value.type_name());
}

inline absl::StatusOr<std::string_view> AsText(const Value& value, std::string_view parameter) {
  if (!value.Is(Kind::kText)) return WrongType(parameter, "a text", value);
  return std::string_view(value.text());
}

inline absl::StatusOr<std::optional<std::string_view>> OptionalText(const Value* value,
                                                                    std::string_view parameter) {
  if (IsAbsent(value)) return std::nullopt;
  return AsText(*value, parameter);
}

inline absl::StatusOr<int64_t> IntegerOr(const Value* value, int64_t standard,
                                         std::string_view parameter) {
  if (IsAbsent(value)) return standard;
  if (!value->Is(Kind::kInteger) && !value->Is(Kind::kBool)) {
    return WrongType(parameter, "an integer", *value);
  }
  return ToInteger(*value);
}

}  // namespace orrery::rollout::jinja

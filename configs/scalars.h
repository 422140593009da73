// Scalars of a YamlNode as the types of settings. Typed by the setting, never by the look of the
// text: "no" is a text where a text is wanted and an error where a truth value is. Errors hold what
// is wrong and the fix, without the place, which the caller knows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "configs/yaml_tree.h"

namespace orrery::configs {

absl::StatusOr<std::string> ReadText(const YamlNode& node);
absl::StatusOr<bool> ReadBool(const YamlNode& node);        // true, false
absl::StatusOr<int64_t> ReadInteger(const YamlNode& node);  // decimal digits with an optional sign
absl::StatusOr<double> ReadNumber(const YamlNode& node);    // decimal, finite

}  // namespace orrery::configs

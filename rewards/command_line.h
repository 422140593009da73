// A command as somebody writes it in a settings file, as the words to execute. No shell is
// involved.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::rewards {

// Words are separated by blanks; '...' and "..." group, a backslash takes the next character as it
// is (not within '...'). InvalidArgument: an open quote, nothing but blanks.
absl::StatusOr<std::vector<std::string>> SplitCommand(std::string_view command);

// Where `program` would be executed from: itself with a slash in it, else the first match in PATH.
absl::StatusOr<std::string> FindExecutable(const std::string& program);

}  // namespace orrery::rewards

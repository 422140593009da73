// Text as one word of a POSIX shell.
#pragma once

#include <string>
#include <string_view>

namespace orrery {

// In single quotes, inside of which nothing means anything but their end.
inline std::string ShellQuote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace orrery

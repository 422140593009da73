// What Unicode characters and LaTeX commands stand for in answers.
#pragma once

#include <string>
#include <string_view>

namespace orrery::rewards {

// Mathematical characters as LaTeX or ASCII; others stay.
std::string ReplaceUnicode(std::string_view text);

// The one name of several commands (leq -> le), or the symbol a command is (times -> *). Empty:
// none.
std::string_view CommandAlias(std::string_view name);

// Says how something looks, and nothing else: \left, \big, \displaystyle.
bool IsSilentCommand(std::string_view name);
// Is a space: \quad.
bool IsSpaceCommand(std::string_view name);
// Its argument is words, or one letter in another shape: \text, \mathrm.
bool IsTextCommand(std::string_view name);

}  // namespace orrery::rewards

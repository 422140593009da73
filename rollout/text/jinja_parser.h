// Tokens to a Program. Follows the grammar of jinja2 3.1 for the listed tags: if, for (with else
// and a condition), set (also as a block), macro, break, continue, generation. Unknown tags,
// filters and tests are errors here, before anything is rendered.
#pragma once

#include <string>
#include <string_view>

#include "rollout/text/jinja_ast.h"

namespace orrery::rollout::jinja {

absl::StatusOr<Program> ParseProgram(std::string_view source, std::string template_name);

}  // namespace orrery::rollout::jinja

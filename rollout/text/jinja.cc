#include "rollout/text/jinja.h"

#include "rollout/text/jinja_eval.h"
#include "rollout/text/jinja_parser.h"

namespace orrery::rollout::jinja {

absl::StatusOr<Template> Template::Parse(std::string_view source, std::string name) {
  ASSIGN_OR_RETURN(Program program, ParseProgram(source, std::move(name)));
  return Template(std::make_shared<const Program>(std::move(program)));
}

absl::StatusOr<std::string> Template::Render(const Map& variables, const Limits& limits,
                                             std::optional<std::time_t> now) const {
  return Evaluator(*program_, Runtime{Budget(limits), now, {}}).Run(variables);
}

}  // namespace orrery::rollout::jinja
